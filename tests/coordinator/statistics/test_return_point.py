"""The checkpoint to return to from an alarm."""

from __future__ import annotations

from pathlib import Path

from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.statistics.alarms import MODEL_KINDS, SPLIT, Alarm, write_alarms
from coordinator.statistics.return_point import ReturnPoint, return_point, steps_to_spare
from tests.support.served_page import FakeRun, validation_row


def checkpoint(step: int, withheld: str = "") -> CheckpointRow:
    """The row of a kept checkpoint."""
    return CheckpointRow(step, 1000, "ab" * 32, 1.0, withheld)


def test_the_newest_sound_checkpoint_from_before_is_chosen() -> None:
    """Not the state that the alarm's own step made, nor one that was withheld or has no finite loss."""
    kept = [checkpoint(step) for step in (60, 50, 40, 30)]
    assert return_point(50, kept, []) == ReturnPoint(40, True)
    assert return_point(50, kept, [validation_row(40, None), validation_row(30, 6.0)]) == ReturnPoint(30, True)
    assert return_point(50, [checkpoint(40, "its loss is not finite"), checkpoint(30)], []) == ReturnPoint(30, True)


def test_where_none_is_old_enough_the_oldest_is_named() -> None:
    """With the word that it is not from before; without any sound checkpoint only the beginning is left."""
    assert return_point(50, [checkpoint(70), checkpoint(60)], []) == ReturnPoint(60, False)
    assert return_point(50, [checkpoint(60, "its loss is not finite")], []) == ReturnPoint(None, False)
    assert return_point(50, [], []) == ReturnPoint(None, False)


def test_the_advice_is_a_command_that_can_be_typed() -> None:
    """With the run's directory, quoted for a shell."""
    directory = Path("/srv/my run")
    command = "manyhands coordinator rewind '/srv/my run' 40"
    assert ReturnPoint(40, True).advice(directory) == f"Return to step 40: {command}"
    oldest = ReturnPoint(40, False).advice(directory)
    assert oldest == f"No sound checkpoint precedes the alarm; the oldest sound one is of step 40: {command}"
    assert ReturnPoint(None, False).advice(directory).endswith("the run can only start over.")


def test_checkpoints_that_alarms_about_the_model_name_are_spared(run: FakeRun) -> None:
    """Not such as an alarm about devices would."""
    database = run.services.database
    for step in (10, 20, 30):
        run.add_checkpoint(step)
    assert steps_to_spare(database) == set()
    found = [Alarm("loss_diverges", 15, ""), Alarm("update_norm", 25, ""), Alarm(SPLIT, 40, "")]
    database.transact(lambda session: write_alarms(session, [*MODEL_KINDS, SPLIT], found, 1.0))
    assert steps_to_spare(database) == {10, 20}
