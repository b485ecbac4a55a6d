"""Backends compute gradients: one contract for PyTorch and for JAX, whose devices keep copies of parameters and sums.

The worker and the doctor's helper open one by `devices`; the agent spawns `device_trial`. Only processes that compute
import these modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch


@dataclass(frozen=True)
class MicrobatchResult:
    """The result of one microbatch; the losses are means over its samples."""

    samples: int
    loss: float  # the objective's total
    mlm_loss: float
    sop_loss: float | None  # None where the objective has no sentence order
    finite: bool  # false: loss or gradient was not finite, and nothing was added


class Backend(Protocol):
    """An engine that sums gradients of microbatches, and hands them to the swarm by the parameters' `.grad`."""

    @property
    def description(self) -> str:
        """The devices that compute, in a few words for people."""
        ...

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return how many samples to compute at once: what fits, at most `limit`; `usual` where more is no faster.

        `make_batch` gives a batch of so many samples to try.
        """
        ...

    def stage(self, batch: Batch) -> Batch:
        """Put a batch where the device takes it fastest; called in the thread of the batches, beside `accumulate`."""
        ...

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples), so that the sum is over samples; all of it or nothing.

        Raises `MemoryLimitError` if not even one sample fits.
        """
        ...

    def collect(self) -> None:
        """Have everything accumulated in the parameters' `.grad`: the swarm is about to average."""
        ...

    def synchronize(self) -> None:
        """Go on with the parameters as they now are, and from no gradients: the swarm has stepped, or dropped them."""
        ...
