"""A keeper's loop: its steps, their receipts, and the duties of each second; real keepers are in tests/system."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from auth.errors import WorkerError
from coordinator.keeper.duties import StatusWriter, renew, steer
from coordinator.members.quarantine import hear_all
from coordinator.run.settings import Policy
from coordinator.store.engine import Database
from peer.reporting.suspicions import Suspicion, WaitingSuspicions
from tests.support.keeper_scene import FULL, Scene


def test_keeper_returns_to_its_own_state_where_members_cannot_agree(database: Database) -> None:
    """None of theirs is more common than others, so all go back to the step that the keeper holds, once."""
    scene = Scene(database, recorded=2, stands_still=True, is_disputed=True)
    scene.run(passes=2)
    assert [what for what in scene.done if "undone" in what or "restored" in what] == [
        f"undone after {scene.step}",
        f"restored {scene.step} in era 1",
    ]


def test_a_step_is_attested_once_others_have_taken_it_too(database: Database) -> None:
    """Their records show it, or their next step with the keeper; never twice, and after an orderly end's checkpoint."""
    seen = Scene(database, recorded=2)
    seen.run()
    assert seen.receipts() == ["a receipt of step 3"]
    assert seen.done[-3:] == ["last checkpoint", "a receipt of step 3", "left"]
    unseen = Scene(database, recorded=2, step_is_shared=False)
    unseen.run(passes=2)
    assert unseen.receipts() == ["a receipt of step 3"]
    assert unseen.done.index("a receipt of step 3") > unseen.done.index("its duties")


def test_a_step_that_the_others_left_without_the_keeper_is_not_attested(database: Database) -> None:
    """It was the keeper's alone, perhaps: the others have taken that step again, of other samples."""
    scene = Scene(database, recorded=2, step_is_shared=False)
    keeper = scene.keeper()
    scene.resume(keeper)
    assert scene.step == 3
    scene.found_at_s, scene.takes_s = 0.0, 0.0
    scene.run(keeper)
    assert scene.step == 18
    assert scene.receipts() == []


def test_it_trains_on_while_its_database_takes_nothing(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """What it cannot write is told in a sentence; the state that it holds is worth more, and is saved at the end."""
    scene = Scene(database, recorded=0, step=0, disk_is_full=True)
    scene.run(passes=3)
    steps = [what for step in (1, 2, 3) for what in ("advanced", f"told of step {step}", "still the only one")]
    assert scene.done == [*steps, "last checkpoint", "left"]  # no duty: its state may be one that was left
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert {record.getMessage().partition(" (")[0] for record in told} == {
        f"{what}: The disk of the run's database is full"
        for what in ("the receipt is not counted", "the keeper is neither steered nor seen")
    }
    assert len({(record.pathname, record.lineno) for record in told}) == 2  # so their repetitions are counted apart


def test_a_pass_ends_with_what_else_it_looks_after(database: Database) -> None:
    """The lock first, and again before each duty: a keeper that was replaced writes nothing."""
    scene = Scene(database, recorded=2, stands_still=True)
    scene.run()
    assert scene.done == ["advanced", *["still the only one"] * 2, "its duties", "last checkpoint", "left"]
    replaced = Scene(database, recorded=2, stands_still=True)
    replaced.duties = (lambda: setattr(replaced, "is_replaced", True),)
    with pytest.raises(WorkerError):
        replaced.run()
    assert replaced.done == ["advanced", *["still the only one"] * 2]


def test_a_duty_that_waited_for_a_stuck_database_leaves_the_others_for_the_next_pass(database: Database) -> None:
    """Each of them could wait as long, and the swarm would miss the keeper."""
    scene = Scene(database, recorded=2, stands_still=True)
    waits = iter((31.0, 0.0))
    scene.duties = (lambda: setattr(scene, "now", scene.now + next(waits)),)
    scene.run(passes=2)
    first, second = ["advanced", *["still the only one"] * 2], ["advanced", *["still the only one"] * 3, "its duties"]
    assert scene.done == [*first, *second, "last checkpoint", "left"]


def test_a_step_is_told_to_the_parts_that_ask_for_it(database: Database) -> None:
    """And to the checkpoints, as the keeper's own; what was taken from others tells of nothing."""
    scene = Scene(database, recorded=2)
    scene.run()
    assert "told of step 3" in scene.done
    assert scene.state_is_own
    behind = Scene(database, recorded=2, found_at_s=0.0, takes_s=0.0)
    behind.run()
    assert (behind.step, behind.state_is_own) == (18, False)
    assert not [what for what in behind.done if "told" in what]


def test_a_duty_that_fails_is_skipped_alone(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Each says in a sentence of its own what is amiss, and what could not be stored waits."""

    def fail(*_: object) -> Any:
        raise FULL

    full: Any = SimpleNamespace(transact=fail, begin=fail, revocations_jwt=fail)
    swarm: Any = SimpleNamespace(progress=lambda: None)
    token = SimpleNamespace(issued_at=0.0, expires_at=99.0)
    credentials: Any = SimpleNamespace(access_token=lambda _now: token, store_revocations=None)
    waiting = WaitingSuspicions()
    suspicion = Suspicion("QmAda", "Ada", "d1", "step", 7, "claims step 1000000000")
    waiting.put(suspicion)
    unreadable: Any = fail
    scene = Scene(database, recorded=2)
    scene.duties = (
        partial(steer, unreadable, swarm, full, full),
        StatusWriter(unreadable, swarm, scene.clock).write,
        partial(renew, full, credentials, lambda: 1.0),
        partial(hear_all, full, Policy(), waiting, "keeper-1", scene.clock),
    )
    scene.run()
    assert "its duties" in scene.done
    said = [record.getMessage().partition(": The disk")[0] for record in caplog.records if record.levelname == "ERROR"]
    assert said == [
        "operators' commands are not followed",
        "the swarm's status is not written",
        "the keeper's token and revocations are not renewed",
        "suspicions wait to be stored",
    ]
    assert waiting.take() == [suspicion]
