"""A keeper whose swarm, ledger, lock and checkpoints are made up; real keepers are in tests/system."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from auth.errors import WorkerError
from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.keeper.keeper import Keeper
from coordinator.keeper.receipts import KeeperReceipts
from coordinator.keeper.recovery import Recovery
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.store.engine import Database
from peer.swarm.moves import StepOutcome

FULL = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
MOVED = "/ip4/192.0.2.8/tcp/31337/p2p/QmKeeper"


@dataclass
class Scene:
    """A keeper over made-up parts; each look at the clock is a second later."""

    database: Database
    recorded: int  # the last step that the ledger knows, by reports or receipts
    step: int = 2  # of the keeper's state
    reached: int = 18  # by survivors, if there are any
    found_at_s: float = float("inf")  # when survivors come into view
    takes_s: float = 5.0  # how long they need to agree on a state
    stands_still: bool = False  # nobody else trains with the keeper
    step_is_shared: bool = True  # others are seen to have taken its newest step, too
    now: float = 0.0
    done: list[str] = field(default_factory=list)
    addresses: tuple[str, ...] = (MOVED,)
    state_is_own: bool = True
    is_disputed: bool = False  # the swarm's state
    disk_is_full: bool = False  # the database's
    is_replaced: bool = False  # by another keeper
    checkpoints_dir: Path = Path()
    ledgers_era: int = 0  # above the swarm's once an operator has gone back to a checkpoint
    told: tuple[str, ...] = ()  # what the sessions could tell when the keeper looked for survivors
    duties: tuple[Callable[[], object], ...] = ()  # besides one that leaves a word in `done`
    era = 0  # the swarm's

    def clock(self) -> float:
        """Unix seconds."""
        self.now += 1.0
        return self.now

    @property
    def is_behind(self) -> bool:
        """Whether survivors are in view."""
        status = read_swarm_status(self.database)
        self.told = () if status is None else status.addresses
        return self.now >= self.found_at_s and self.step < self.reached

    @property
    def state(self) -> Any:
        """The swarm's."""
        return self

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

    def restore(self, step: int | StoredCheckpoint, era: int) -> None:
        """The swarm's, or the checkpoints'."""
        step = step if isinstance(step, int) else step.manifest.step
        self.done.append(f"restored {step} in era {era}")
        self.is_disputed = False

    def last_known_step(self) -> int:
        """The ledger's."""
        return self.recorded

    def roll_back(self, step: int) -> int:
        """The ledger's."""
        self.done.append(f"undone after {step}")
        return 1

    def check(self) -> None:
        """The lock's."""
        if self.is_replaced:
            raise WorkerError("replaced")
        self.done.append("still the only one")

    def take_receipt(self, _device_id: str, step: int, receipt: str) -> None:
        """The ledger's."""
        if self.disk_is_full:
            raise FULL
        self.done.append(f"{receipt} of step {step}")

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

    def receipts(self) -> list[str]:
        """The receipts that the ledger was told of, in words."""
        return [what for what in self.done if "receipt" in what]

    def resume(self, keeper: Keeper | None = None) -> None:
        """Do what this keeper, or a new one, does first."""
        keeper = keeper or self.keeper()
        keeper.recovery.resume_ledger(keeper.advance, lambda: False)

    def run(self, keeper: Keeper | None = None, passes: int = 1) -> None:
        """Let this keeper, or a new one, pass its loop so often."""
        until = self.done.count("advanced") + passes
        (keeper or self.keeper()).run(lambda: self.done.count("advanced") >= until)

    def keeper(self) -> Keeper:
        """Over these parts."""
        parts: Any = self
        return Keeper(
            swarm=parts,
            lock=parts,
            recovery=Recovery(parts, parts, self.database, self.checkpoints_dir, parts, parts, self.clock),
            receipts=KeeperReceipts(parts, "keeper-1"),
            checkpointing=parts,
            on_step=(lambda outcome: self.done.append(f"told of step {outcome.step}"),),
            duties=(*self.duties, lambda: self.done.append("its duties")),
            clock=self.clock,
        )
