"""Backends compute gradients: one interface for PyTorch and for JAX.

The devices of a backend keep copies of the parameters and sums of gradients. The worker and the doctor's helper
open a backend by `devices`; the agent spawns `device_trial`. Only processes that compute import these modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch


@dataclass(frozen=True)
class MicrobatchResult:
    """The result of one microbatch; losses are means over its samples."""

    samples: int
    loss: float  # the objective's total
    mlm_loss: float
    sop_loss: float | None  # None where the objective has no sentence order
    finite: bool  # false: loss or gradient was not finite, and nothing was added


class Backend(Protocol):
    """An engine that sums microbatches' gradients and passes them to the swarm in `.grad`."""

    @property
    def description(self) -> str:
        """A short description of the computing devices, for people."""
        ...

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the number of samples per microbatch, up to `limit`.

        It is the largest that fits, or `usual` if more is no faster. `make_batch` makes a batch of
        a given size for trials.
        """
        ...

    def stage(self, batch: Batch) -> Batch:
        """Prepare a batch for fast transfer to the device. Called in the data thread, during `accumulate`."""
        ...

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples), a sum over samples.

        Either all of it or nothing. Raises `MemoryLimitError` if not even one sample fits.
        """
        ...

    def collect(self) -> None:
        """Move all accumulated gradients to the parameters' `.grad`, before the swarm averages."""
        ...

    def synchronize(self) -> None:
        """Continue with the current parameters and no gradients: the swarm used or dropped them."""
        ...
