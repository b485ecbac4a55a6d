"""The sizes of gradients and states on the wire: bytes per value, and how many values PowerSGD sends.

Light: the doctor counts with it, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peer.config.training import Averaging, Compression

if TYPE_CHECKING:
    import torch

BLOCK = 128  # values that share a scale
SCALE_BYTES = 4
ROUNDED_BYTES = 2 + SCALE_BYTES / BLOCK  # of an optimizer's statistic on its way, in 16 bits by blocks
LEAST_SAVING = 2  # a matrix that would not shrink by this factor is averaged as it is
CHUNK = 4096  # values of which a sparse sender sends `CHUNK_SENT`
CHUNK_SENT = 64
CHUNK_BYTES = 2 * SCALE_BYTES + CHUNK_SENT * (12 + 2) // 8  # two scales; of each value sent, its index and its code
VALUE_BYTES: dict[Compression, float] = {  # from a sender to its reducers
    "none": 4,
    "float16": 2,
    "8bit-blockwise": 1 + SCALE_BYTES / BLOCK,
    "topk-2bit": CHUNK_BYTES / CHUNK,
}
AVERAGE_BYTES: dict[Compression, float] = VALUE_BYTES | {"topk-2bit": 4 / 8 + SCALE_BYTES / BLOCK}  # from a reducer
DOWN_TIMES_UP = 10  # the downlink of a home line, in terms of its uplink


@dataclass(frozen=True)
class RoundBytes:
    """The bytes of all averaged values in a round, in each direction."""

    sent: float  # by a sender
    averages: float  # that come back to a peer

    @classmethod
    def of(cls, compression: Compression, values: int = 1) -> RoundBytes:
        """Return the bytes of so many values."""
        return cls(VALUE_BYTES[compression] * values, AVERAGE_BYTES[compression] * values)

    @property
    def own(self) -> float:
        """The bytes of a peer's own gradient over the slower direction of its line.

        Where averages are larger than what a sender sends, the line is taken to be a home line, whose downlink is
        faster.
        """
        return max(self.sent, self.averages / DOWN_TIMES_UP)

    @property
    def averages_of_own(self) -> float:
        """The bytes of averages for each byte of a peer's own gradient."""
        return self.averages / self.own


def shrinks(shape: Sequence[int], rank: int) -> bool:
    """Return whether a tensor of this shape is averaged as two factors; `rank` 0 is for none."""
    if rank == 0 or len(shape) < 2 or 0 in shape:
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return LEAST_SAVING * rank * (rows + columns) <= rows * columns


def values_sent(shapes: Iterable[Sequence[int]], rank: int) -> int:
    """Return the number of values that a peer sends to have tensors of these shapes averaged."""
    return sum(
        rank * (shape[0] + math.prod(shape[1:])) if shrinks(shape, rank) else math.prod(shape) for shape in shapes
    )


def gradient_bytes(averaging: Averaging, model: torch.nn.Module) -> int:
    """Return how many bytes of a peer's gradient pass the slower direction of its line when it is averaged."""
    shapes = [parameter.shape for parameter in model.parameters() if parameter.requires_grad]
    return round(RoundBytes.of(averaging.wire_format, values_sent(shapes, averaging.powersgd_rank)).own)


def missed_average_bytes(averaging: Averaging, averaged: int) -> int:
    """Return the most bytes of a missed average of so many values, as `peer.swarm.average_history` encodes it."""
    return round(averaged * (VALUE_BYTES["none"] if averaging.powersgd_rank else AVERAGE_BYTES[averaging.wire_format]))


@dataclass(frozen=True)
class StateSize:
    """The numbers of values in a run's state, which depend on its optimizer."""

    parameters: int  # the trained ones
    rounded: int  # of the optimizer's statistics, those that a joiner takes in 16 bits by blocks
    exact: int  # and those that it takes as they are

    @property
    def moments(self) -> int:
        """All values of the optimizer's statistics."""
        return self.rounded + self.exact

    @property
    def wire_bytes(self) -> int:
        """The bytes of the state on its way to a joiner."""
        return round(VALUE_BYTES["none"] * (self.parameters + self.exact) + ROUNDED_BYTES * self.rounded)
