"""Recovery of a state shared by keeper and peers, after a restart, a dispute or a rewind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from auth.errors import StorageError
from coordinator.checkpoints.manifest import newest_verified
from coordinator.checkpoints.rewind import set_aside_undone
from coordinator.keeper.checkpointing import Checkpointing
from coordinator.keeper.lock import KeeperLock
from coordinator.ledger.keeper_status import tell_keeper_addresses
from coordinator.ledger.ledger import Ledger
from coordinator.store.engine import Database
from peer.swarm.swarm import Swarm

logger = logging.getLogger(__name__)
POLL_S = 0.03  # as in the keeper's loop, because the keeper may be averaging in the meantime
SURVIVORS_WAIT_S = 10.0  # time to find surviving peers, which look for the keeper every 5 s
SURVIVORS_TOLD_S = 60.0  # longer if the keeper's addresses changed or steps may be lost: peers may need new sessions
SURVIVORS_STATE_S = 60.0  # time for these peers to agree on a state for the keeper to download


@dataclass(frozen=True)
class Recovery:
    """Methods to adopt the other peers' state, or to make peers return to the keeper's state."""

    swarm: Swarm
    ledger: Ledger
    database: Database
    checkpoints_dir: Path
    checkpointing: Checkpointing
    lock: KeeperLock
    clock: Callable[[], float]

    def resume_ledger(self, advance: Callable[[], None], should_stop: Callable[[], bool]) -> None:
        """Find peers that kept training while the keeper was away; if there are none, undo the lost steps.

        If steps may be lost, the keeper takes no step before it finds such peers: peers that join
        in the meantime have the old state.
        """
        has_moved = tell_keeper_addresses(self.database, self.swarm.addresses)
        recorded = self.ledger.last_known_step()
        resumed_at = self.swarm.step
        may_undo, are_found = recorded > resumed_at, False
        until = self.clock()
        if recorded or resumed_at:
            until += SURVIVORS_TOLD_S if may_undo or has_moved else SURVIVORS_WAIT_S
        while self.swarm.step == resumed_at and self.clock() < until and not should_stop():
            if self.swarm.is_behind and not are_found:
                are_found, until = True, self.clock() + SURVIVORS_STATE_S
            if self.swarm.is_behind or not may_undo:
                advance()
            time.sleep(POLL_S)
        if recorded > self.swarm.step and not should_stop():
            self.undo_later_steps("nobody holds their state any more")

    def undo_later_steps(self, reason: str) -> None:
        """Undo all steps after the keeper's state; all peers return to it, in a new era."""
        self.lock.check()
        logger.warning("steps after %d are lost: %s", self.swarm.step, reason)
        self.swarm.state.restore(self.swarm.step, self.ledger.roll_back(self.swarm.step))

    def return_if_told(self) -> None:
        """Restore the checkpoint an operator chose, if any. Raises `StorageError` if none is intact."""
        era = self.ledger.current_era()
        if era <= self.swarm.state.era:
            return
        set_aside_undone(self.checkpoints_dir, self.ledger.last_counting_step)
        stored = newest_verified(self.checkpoints_dir)
        if stored is None:
            raise StorageError(f"{self.checkpoints_dir} holds no checkpoint to go back to.")
        if self.ledger.last_known_step() > stored.manifest.step:  # the chosen checkpoint is damaged
            era = self.ledger.roll_back(stored.manifest.step)
        self.checkpointing.restore(stored, era)
        logger.warning("gone back to step %d: all peers resume from there", stored.manifest.step)
