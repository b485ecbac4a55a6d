"""Averaging modes, each a compression format with a PowerSGD rank, in order of their cost in loss.

For the measurements, see docs/operators/network.md, "Many workers in one process".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.config.training import Averaging, Compression
from peer.reduction.sizes import gradient_bytes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AveragingWay:
    """A compression format with a PowerSGD rank, and its measured cost."""

    compression: Compression
    powersgd_rank: int = 0  # 0: tensors are averaged whole, not as factors
    loss: float = field(default=1.0, compare=False)  # held-out loss relative to exact averages

    @property
    def keys(self) -> dict[str, str | int]:
        """The mode's keys and values in the section `averaging` of a run file."""
        return {"compression": self.compression, "powersgd_rank": self.powersgd_rank}

    def __str__(self) -> str:
        """Return the mode's name, as in the guide's table."""
        return f"powersgd_rank: {self.powersgd_rank}" if self.powersgd_rank else self.compression


DENSE = (AveragingWay("float16"), AveragingWay("8bit-blockwise"))
LOW_RANK = (AveragingWay("float16", 16), AveragingWay("float16", 8), AveragingWay("float16", 4, 1.001))


def ways_of(averaging: Averaging) -> tuple[AveragingWay, ...]:
    """Return the modes available to a run, in ascending order of their cost in loss.

    PowerSGD was not measured with local steps.
    """
    return DENSE if averaging.aggregation == "centered_clipping" or averaging.local_steps > 1 else DENSE + LOW_RANK


def way_of(averaging: Averaging) -> AveragingWay:
    """Return the mode that these settings select."""
    return AveragingWay(averaging.wire_format, averaging.powersgd_rank)


def fewest_bytes(averaging: Averaging, model: torch.nn.Module) -> int:
    """Return the smallest size of a peer's gradients, in bytes, over all modes of the run.

    Only a run with `compression: auto` changes its mode; any other run has one mode.
    """
    ways = ways_of(averaging) if averaging.compression == "auto" else ()
    own = [averaging.with_code((way.compression, way.powersgd_rank)) for way in ways]
    return min(gradient_bytes(each, model) for each in (averaging, *own))
