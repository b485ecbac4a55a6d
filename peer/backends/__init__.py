"""What computes gradients: one contract for PyTorch and for JAX, whose devices keep copies of parameters and sums."""

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
    """Sums gradients of microbatches, and hands them to the swarm by the parameters' `.grad`."""

    @property
    def description(self) -> str:
        """What computes, in a few words for people."""
        ...

    @property
    def replicas(self) -> int:
        """Among how many devices each microbatch is divided."""
        ...

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples), so that the sum is over samples."""
        ...

    def gradients_are_finite(self) -> bool:
        """Whether what has been accumulated may be given to the swarm."""
        ...

    def collect(self) -> None:
        """Have everything accumulated in the parameters' `.grad`: the swarm is about to average."""
        ...

    def synchronize(self) -> None:
        """Go on with the parameters as they now are, and from no gradients: the swarm has stepped, or dropped them."""
        ...
