"""Going back to a checkpoint: what is undone, who contributed to it, and what becomes of the checkpoints after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from auth.errors import ConfigError
from coordinator.checkpoints.manifest import newest_verified, stored_steps
from coordinator.checkpoints.rewind import UNDONE, checkpoint_to_return_to, contributors_since, rewind, set_aside_undone
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.members.administration import Administration
from coordinator.members.audit import audit_log
from coordinator.members.quarantine import SuspicionReport, hear, quarantines
from coordinator.run.settings import Policy
from peer.reporting.messages import StepReport
from tests.support.ledgers import deliver
from tests.support.receipts import key_of
from tests.support.small_checkpoints import add_checkpoint
from tests.support.small_run import make_small_run

LAST = 12


class Scene:
    """A run of twelve steps with checkpoints after five and ten, to which two members have contributed."""

    def __init__(self, run: OpenRun) -> None:
        self.run, self.peer_ids, self.device_ids = run, dict[str, str](), dict[str, str]()
        for name in ("ada", "mallory"):
            key = key_of(name)
            grant = run.membership.join(key.public_key, run.membership.invite(name)[0])
            self.peer_ids[name], self.device_ids[name] = key.peer_id, grant.device_id
        for step in range(1, LAST + 1):
            self.report("ada", step)
            if step > 6:
                self.report("mallory", step)
        for step in (5, 10):
            add_checkpoint(run.directory, run.database, step, seed=step)
        self.acts = Administration(run.database, run.membership, "os:tester", lambda: 1000.0)

    def report(self, name: str, step: int, era: int = 0) -> None:
        """What a member's device says of a step."""
        report = StepReport(step, 10, 2.0, None, None, 2, None, 0.5, 5.0, era=era)
        number = 100 * era + step
        verdict = deliver(self.run.ledger, self.device_ids[name], None, number, report, 1000.0 + step)
        assert verdict.accepted, verdict.reason

    def rewind(self, step: int, *suspects: str) -> tuple[int, int]:
        """As an operator."""
        devices = [self.device_ids[name] for name in suspects]
        return rewind(self.acts, self.run.directory.checkpoints_dir, self.run.ledger, step, devices)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with open_run(make_small_run(tmp_path).path) as run:
        yield Scene(run)


def test_later_steps_are_undone_and_their_checkpoints_offered_no_more(scene: Scene) -> None:
    """What is reported of them later does not count either; all of it is on record."""
    assert scene.rewind(5) == (LAST - 5, 1)
    assert scene.run.ledger.last_step() == 5
    assert [row.step for row in checkpoints(scene.run.database)] == [5]
    scene.report("ada", LAST + 1)
    assert scene.run.ledger.last_step() == 5
    [entry] = [entry for entry in audit_log(scene.run.database, 9) if entry.act == "rewind"]
    assert (entry.actor, entry.subject, entry.detail) == ("os:tester", "5", "7 step(s)")


def test_who_contributed_since_is_listed_the_most_suspicious_first(scene: Scene) -> None:
    """With how much, and how often others have spoken of it."""
    words = SuspicionReport(scene.peer_ids["mallory"], "gradient", 8, "sent a gradient 12 times the largest")
    hear(scene.run.database, Policy(), words, scene.device_ids["ada"], 1000.0)
    found = contributors_since(scene.run.database, 5)
    assert [(row.member, row.steps, row.samples, row.suspicions) for row in found] == [
        ("mallory", 6, 60, 1),
        ("ada", 7, 70, 0),
    ]
    assert [row.member for row in contributors_since(scene.run.database, LAST)] == []


def test_suspects_are_cut_off_on_request(scene: Scene) -> None:
    """Those alone that were named."""
    scene.rewind(5, "mallory")
    assert [(row.member, row.actor) for row in quarantines(scene.run.database)] == [("mallory", "os:tester")]


@pytest.mark.parametrize(("step", "reason"), [(7, "no checkpoint of step 7"), (10, "is damaged")])
def test_there_is_no_going_back_to_what_is_not_there(scene: Scene, step: int, reason: str) -> None:
    """Nothing is undone then, and nobody cut off."""
    (scene.run.directory.checkpoints_dir / "step-00000010" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ConfigError, match=reason):
        scene.rewind(step, "mallory")
    assert scene.run.ledger.last_step() == LAST
    assert not quarantines(scene.run.database)


def test_the_last_step_is_no_step_back(scene: Scene) -> None:
    """There is nothing to undo."""
    scene.rewind(5)
    with pytest.raises(ConfigError, match="nothing to undo"):
        scene.rewind(5)


def test_undone_checkpoints_are_set_aside_until_the_next_return(scene: Scene) -> None:
    """Whoever resumes finds the one that was gone back to; one taken anew at the same step is no undone one."""
    folder, ledger = scene.run.directory.checkpoints_dir, scene.run.ledger
    assert set_aside_undone(folder, ledger.last_counting_step) == []
    scene.rewind(5)
    assert set_aside_undone(folder, ledger.last_counting_step) == [10]
    found = newest_verified(folder)
    assert found is not None
    assert found.manifest.step == 5
    assert [path.name for path in (folder / UNDONE).iterdir()] == ["step-00000010"]
    add_checkpoint(scene.run.directory, scene.run.database, 10, seed=11)
    assert set_aside_undone(folder, ledger.last_counting_step) == []
    assert stored_steps(folder) == [5, 10]
    assert checkpoint_to_return_to(folder, 10).manifest.era == 1
