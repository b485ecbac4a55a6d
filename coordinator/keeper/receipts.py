"""The keeper's receipt of the newest step, which the ledger gets once other peers are known to have taken the step.

A round may succeed for the keeper only. The others then repeat the step, perhaps after the keeper
was killed, and a receipt from the first round would contradict their reports.
"""

from __future__ import annotations

from coordinator.ledger.ledger import Ledger
from coordinator.store.engine import log_trouble
from peer.swarm.swarm import StepOutcome


class KeeperReceipts:
    """The keeper's receipts, of which at most the newest step's is not filed yet."""

    def __init__(self, ledger: Ledger, device_id: str) -> None:
        self._ledger, self._device_id = ledger, device_id
        self._unfiled: StepOutcome | None = None

    def step_taken(self, outcome: StepOutcome) -> None:
        """File the receipt of the step before, because this group has taken that step too; hold this step's."""
        self.file()
        self._unfiled = outcome

    def drop(self) -> None:
        """Drop the receipt: the others continued without the keeper, perhaps from another average."""
        self._unfiled = None

    def file(self) -> None:
        """Record the receipt that is not filed yet, if any; other peers are known to have taken its step."""
        outcome, self._unfiled = self._unfiled, None
        if outcome is not None and outcome.receipt:
            with log_trouble("the receipt is not counted"):
                self._ledger.take_receipt(self._device_id, outcome.step, outcome.receipt)
