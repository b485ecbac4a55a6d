"""What a keeper that comes back does about steps that were taken without it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from auth.errors import StorageError
from coordinator.keeper import SURVIVORS_STATE_S, SURVIVORS_TOLD_S, Keeper
from coordinator.presence import read_swarm_status, write_swarm_status
from coordinator.store.engine import Sessions
from peer.swarm import StepOutcome
from tests.support.stores import empty_store

FULL = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
MOVED = "/ip4/192.0.2.8/tcp/31337/p2p/QmKeeper"


@dataclass
class Scene:
    """A keeper whose swarm, ledger and lock are made up; each look at the clock is a second later."""

    sessions: Sessions
    recorded: int  # the last step that the ledger knows
    step: int = 2  # of the keeper's state
    reached: int = 18  # by survivors, if there are any
    found_at_s: float = float("inf")  # when survivors come into view
    takes_s: float = 5.0  # how long they need to agree on a state
    stands_still: bool = False  # nobody else trains with the keeper
    now: float = 0.0
    done: list[str] = field(default_factory=list)
    addresses: tuple[str, ...] = (MOVED,)
    state_is_own: bool = True
    disk_is_full: bool = False  # the database's
    checkpoints_dir: Path = Path()
    ledgers_era: int = 0  # above the swarm's once an operator has gone back to a checkpoint
    told: tuple[str, ...] = ()  # what the sessions could tell when the keeper looked for survivors

    def clock(self) -> float:
        """Unix seconds."""
        self.now += 1.0
        return self.now

    @property
    def is_behind(self) -> bool:
        """Whether survivors are in view."""
        status = read_swarm_status(self.sessions)
        self.told = () if status is None else status.addresses
        return self.now >= self.found_at_s and self.step < self.reached

    def advance(self) -> StepOutcome | None:
        """Take the survivors' state as soon as they agree; with nobody ahead, average a step."""
        self.done.append("advanced")
        if self.stands_still and not self.is_behind:
            return None
        if self.is_behind and self.now < self.found_at_s + self.takes_s:
            return None
        averaged = not self.is_behind
        self.step = self.step + 1 if averaged else self.reached
        return StepOutcome(self.step, 0, averaged, 2, 64, 0.1, receipt="a receipt" if averaged else "")

    def restore(self, step: int, era: int) -> None:
        """The swarm's."""
        self.done.append(f"restored {step} in era {era}")

    def last_step(self) -> int:
        """The ledger's."""
        return self.recorded

    def roll_back(self, step: int) -> int:
        """The ledger's."""
        self.done.append(f"undone after {step}")
        return 1

    def check(self) -> None:
        """The lock's."""
        self.done.append("still the only one")

    def take_receipt(self, _device_id: str, step: int, receipt: str) -> None:
        """The ledger's."""
        if self.disk_is_full:
            raise FULL
        self.done.append(f"{receipt} of step {step}")

    def access_token(self, _now: float) -> Any:
        """The credentials'."""
        return self

    device_id = "keeper"
    era = 0  # the swarm's
    sketch = ()

    def step_taken(self, *_facts: object) -> None:
        """The alarms'."""

    def write_if_due(self, stopping: bool = False) -> None:
        """The checkpoints'."""
        self.done += ["last checkpoint"] if stopping else []

    def current_era(self) -> int:
        """The ledger's."""
        if self.disk_is_full:
            raise FULL
        return self.ledgers_era

    def last_counting_step(self, _era: int) -> int | None:
        """The ledger's."""
        return None

    def leave(self) -> None:
        """The swarm's."""
        self.done.append("left")

    def resume(self) -> None:
        """What a keeper does first."""
        self.keeper().resume_ledger(lambda: False)

    def keeper(self) -> Keeper:
        """Over these parts."""
        names = ("config", "model", "membership", "suspicions", "devices")
        parts: dict[str, Any] = dict.fromkeys(names)
        of_scene = ("directory", "swarm", "ledger", "credentials", "checkpointing", "alarms", "lock")
        parts |= dict.fromkeys(of_scene, self)
        return Keeper(**parts, sessions=self.sessions, clock=self.clock)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    """A run's database with what the keeper before has seen, elsewhere."""
    with empty_store(tmp_path, "sqlite") as sessions:
        write_swarm_status(
            sessions,
            step=2,
            samples_accumulated=0,
            target_batch_size=64,
            peers=2,
            samples_per_second=1.0,
            eta_s=None,
            addresses=("/ip4/192.0.2.7/tcp/31337/p2p/QmKeeper",),
            now=0.0,
        )
        yield sessions


def test_survivors_are_told_where_it_is_and_nothing_is_undone(sessions: Sessions) -> None:
    """Found late, they get all the time to agree on a state that they have who are found at once."""
    scene = Scene(sessions, recorded=18, found_at_s=SURVIVORS_TOLD_S - 5, takes_s=SURVIVORS_STATE_S - 10)
    scene.resume()
    assert scene.told == (MOVED,)
    assert scene.step == 18
    assert not scene.state_is_own
    assert set(scene.done) == {"advanced"}


def test_without_survivors_the_steps_after_its_checkpoint_are_undone(sessions: Sessions) -> None:
    """Not before sessions that were opened anew can have told anybody; it takes no step meanwhile."""
    scene = Scene(sessions, recorded=18)
    scene.resume()
    assert scene.now >= SURVIVORS_TOLD_S
    assert scene.done == ["still the only one", "undone after 2", "restored 2 in era 1"]


def test_where_it_has_moved_it_waits_for_whose_reports_have_yet_to_come(sessions: Sessions) -> None:
    """What it says of the swarm before it knows how far that is would make their reports implausible."""
    scene = Scene(sessions, recorded=2, found_at_s=SURVIVORS_TOLD_S - 5, stands_still=True)
    scene.resume()
    assert scene.step == 18


def test_with_nothing_to_undo_it_trains_with_whoever_is_there(sessions: Sessions) -> None:
    """The step counts like any other."""
    scene = Scene(sessions, recorded=2)
    scene.resume()
    assert scene.done == ["advanced", "a receipt of step 3"]


def test_a_new_run_waits_for_nobody(sessions: Sessions) -> None:
    """There can be no survivors."""
    scene = Scene(sessions, recorded=0, step=0)
    scene.resume()
    assert scene.done == []


def test_it_trains_on_while_its_database_takes_nothing(sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """What it cannot write is told in a sentence; the state that it holds is worth more, and is saved at the end."""
    scene = Scene(sessions, recorded=0, step=0, disk_is_full=True)
    scene.keeper().run(lambda: scene.step >= 3)
    assert scene.done == [*["advanced", "still the only one"] * 3, "last checkpoint", "left"]
    assert {record.getMessage().partition(" (")[0] for record in caplog.records if record.levelname == "ERROR"} == {
        f"{what}: The disk of the run's database is full"
        for what in ("the receipt is not counted", "the keeper is neither steered nor seen")
    }


def test_a_return_without_a_checkpoint_ends_it_with_a_sentence(sessions: Sessions, tmp_path: Path) -> None:
    """An operator has gone back to a checkpoint that is gone since; nothing is undone, and the lock was asked first."""
    scene = Scene(sessions, recorded=18, ledgers_era=1, checkpoints_dir=tmp_path / "checkpoints")
    with pytest.raises(StorageError, match="holds no checkpoint to go back to"):
        scene.keeper().run(lambda: scene.step >= 3)
    assert scene.done == ["advanced", "a receipt of step 3", "still the only one"]
