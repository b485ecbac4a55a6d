"""What a peer signs of the rounds that it reduced; used by `peer.swarm`, in the process that holds the swarm's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from auth.identity import DeviceKey
from auth.receipts import Receipt, sign_receipt, whole_samples


@dataclass(frozen=True)
class Witness:
    """One device in one run."""

    key: DeviceKey
    run: str

    def receipt(self, era: int, step: int, weights: Mapping[str, float]) -> str:
        """The signed receipt of the round that led to `step` (peer ID -> samples); empty where nothing was reduced.

        Its own samples are in it, too, which is no evidence: it makes the receipt the same as the others'.
        """
        samples = whole_samples(weights)
        return str(sign_receipt(self.key, Receipt(self.run, era, step, samples))) if samples else ""
