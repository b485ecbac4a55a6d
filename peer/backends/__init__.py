"""What computes gradients: one contract for PyTorch now, and for JAX on TPUs later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from peer.data.batches import Batch


@dataclass(frozen=True)
class MicrobatchResult:
    """What came of one microbatch; the losses are means over its samples."""

    samples: int
    loss: float  # the objective's total
    mlm_loss: float
    sop_loss: float | None  # None where the objective has no sentence order
    finite: bool  # false: the loss was not finite, and no gradient was added


class Backend(Protocol):
    """Adds gradients of microbatches to the parameters' `.grad`, where the swarm takes them from."""

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples), so that `.grad` holds a sum over samples."""
        ...

    def gradients_are_finite(self) -> bool:
        """Whether what has been accumulated may be given to the swarm."""
        ...
