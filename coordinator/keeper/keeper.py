"""The keeper's main loop, which takes each step with the swarm and does other duties every second.

The keeper is the swarm's first DHT node, and an averaging peer that holds the newest state.
`coordinator.keeper.opening` creates its parts and connects them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.keeper.checkpointing import Checkpointing
from coordinator.keeper.lock import KeeperLock
from coordinator.keeper.receipts import KeeperReceipts
from coordinator.keeper.recovery import Recovery
from coordinator.store.engine import BUSY_TIMEOUT_S, log_trouble
from peer.swarm.moves import StepOutcome
from peer.swarm.swarm import Swarm

logger = logging.getLogger(__name__)
POLL_S = 0.03  # a full batch waits at most this long for the keeper
DUTIES_PERIOD_S = 1.0


@dataclass(frozen=True)
class Keeper:
    """The keeper, assembled from its parts; `run` is its main loop."""

    swarm: Swarm
    lock: KeeperLock
    recovery: Recovery
    receipts: KeeperReceipts
    checkpointing: Checkpointing
    on_step: Sequence[Callable[[StepOutcome], object]]  # called after each step that the keeper has averaged
    duties: Sequence[Callable[[], object]]  # called once a second; they log failed writes instead of raising
    clock: Callable[[], float]

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Take steps and perform the duties until stopped; then write a final checkpoint."""
        done_at = 0.0
        while not should_stop():
            if self.swarm.step_is_shared:
                self.receipts.file()
            self.advance()
            if self.swarm.state.is_disputed:
                self.recovery.undo_later_steps("members hold different states, and none is more common than others")
            if self.clock() - done_at >= DUTIES_PERIOD_S:
                done_at = self.clock()
                self.lock.check()
                with log_trouble("the keeper is neither steered nor seen"):
                    self.recovery.return_if_told()  # if this fails, skip the duties: the state may be undone
                    for do in self.duties:
                        if self.clock() - done_at > BUSY_TIMEOUT_S:  # the database is stuck, and the swarm waits
                            break
                        self.lock.check()  # a rewind takes minutes, and so may a duty
                        do()
            time.sleep(POLL_S)
        self.checkpointing.write_if_due(stopping=True)
        if self.swarm.step_is_shared:
            self.receipts.file()
        self.swarm.leave()

    def advance(self) -> None:
        """Take the next step with the trainers and notify the parts, or catch up with the swarm."""
        outcome = self.swarm.advance()
        if outcome is None:
            return
        self.checkpointing.state_is_own = outcome.averaged
        if not outcome.averaged:
            self.receipts.drop()
            return
        logger.info("step %d: group of %d, %s samples", outcome.step, outcome.group_size, outcome.group_samples)
        self.receipts.step_taken(outcome)
        for tell in self.on_step:
            tell(outcome)
        self.checkpointing.write_if_due()
