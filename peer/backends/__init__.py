"""Backends that compute gradients, with one interface for PyTorch and JAX.

A backend's devices hold copies of the parameters and sums of gradients. The worker and the doctor's
helper use `devices`; the agent spawns `device_trial`. Only computing processes import this package.
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
    loss: float  # total loss under the objective
    mlm_loss: float
    sop_loss: float | None  # None without sentence-order prediction
    finite: bool  # whether loss and gradient are finite; if not, no gradient was added


class Backend(Protocol):
    """An engine that sums microbatches' gradients and passes them to the swarm in `.grad`."""

    @property
    def description(self) -> str:
        """A short description of the computing devices for users."""
        ...

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the number of samples per microbatch, up to `limit`.

        The size is the largest that fits into memory, or `usual` if a larger size is no faster.
        `make_batch` builds a batch of a given size for trials.
        """
        ...

    def stage(self, batch: Batch) -> Batch:
        """Prepare a batch for fast transfer to the device; called in the data thread during `accumulate`."""
        ...

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of the loss, summed over samples, if loss and gradient are finite.

        Raises `MemoryLimitError` if not even one sample fits.
        """
        ...

    def collect(self) -> None:
        """Move all accumulated gradients to the parameters' `.grad`, before the swarm averages."""
        ...

    def synchronize(self) -> None:
        """Reload the parameters and clear the gradients after the swarm has finished with both."""
        ...
