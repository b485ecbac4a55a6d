"""The keeper's receipt for the newest step, recorded only once other peers have taken the step.

A round may succeed only for the keeper. The other peers then repeat the step, possibly after the
keeper was killed, and a receipt from the first round would contradict their reports.
"""

from __future__ import annotations

from coordinator.ledger.ledger import Ledger
from coordinator.store.engine import log_trouble
from peer.swarm.moves import StepOutcome


class KeeperReceipts:
    """The keeper's receipts; only the newest step's receipt may still be unrecorded."""

    def __init__(self, ledger: Ledger, device_id: str) -> None:
        self._ledger, self._device_id = ledger, device_id
        self._unfiled: StepOutcome | None = None

    def step_taken(self, outcome: StepOutcome) -> None:
        """Hold a step's receipt; record the previous one, as the group has taken that step too."""
        self.file()
        self._unfiled = outcome

    def drop(self) -> None:
        """Drop the held receipt: peers continued without the keeper, maybe with another average."""
        self._unfiled = None

    def file(self) -> None:
        """Record the held receipt, if any; call this only once other peers have taken its step."""
        outcome, self._unfiled = self._unfiled, None
        if outcome is not None and outcome.receipt:
            with log_trouble("the receipt is not counted"):
                self._ledger.take_receipt(self._device_id, outcome.step, outcome.receipt)
