"""The sizes of gradients and states on the wire: bytes per value, and values sent with PowerSGD.

The module does not import torch, because the doctor uses it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peer.config.training import Averaging, Compression

if TYPE_CHECKING:
    import torch

BLOCK = 128  # number of values that share a scale
SCALE_BYTES = 4
ROUNDED_BYTES = 2 + SCALE_BYTES / BLOCK  # bytes per value of an optimizer's statistic
LEAST_SAVING = 2  # minimum reduction in size for a matrix to be averaged as two factors
VALUE_BYTES: dict[Compression, float] = {"none": 4, "float16": 2, "8bit-blockwise": 1 + SCALE_BYTES / BLOCK}


def round_bytes(averaging: Averaging, values: int) -> float:
    """Return the bytes of a peer's gradients in a round, and of the averages, for this number of values on the wire."""
    return VALUE_BYTES[averaging.wire_format] * values


def shrinks(shape: Sequence[int], rank: int) -> bool:
    """Return whether PowerSGD averages a tensor of this shape as two factors; False for `rank` 0."""
    if rank == 0 or len(shape) < 2 or 0 in shape:
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return LEAST_SAVING * rank * (rows + columns) <= rows * columns


def values_sent(shapes: Iterable[Sequence[int]], rank: int) -> int:
    """Return the number of values that a peer sends for tensors of these shapes."""
    return sum(
        rank * (shape[0] + math.prod(shape[1:])) if shrinks(shape, rank) else math.prod(shape) for shape in shapes
    )


def gradient_bytes(averaging: Averaging, model: torch.nn.Module) -> int:
    """Return the bytes of a peer's own gradient per round."""
    shapes = [parameter.shape for parameter in model.parameters() if parameter.requires_grad]
    return round(round_bytes(averaging, values_sent(shapes, averaging.powersgd_rank)))


def missed_average_bytes(averaging: Averaging, averaged: int) -> int:
    """Return the largest size of a missed average, as `peer.swarm.transfers` encodes it."""
    return round(averaged * VALUE_BYTES["none" if averaging.powersgd_rank else averaging.wire_format])


@dataclass(frozen=True)
class StateSize:
    """The numbers of values in a run's state, which depend on its optimizer."""

    parameters: int  # number of trained parameters
    rounded: int  # optimizer statistics sent to a joiner in 16 bits each
    exact: int  # optimizer statistics sent to a joiner without loss

    @property
    def moments(self) -> int:
        """The total number of values of the optimizer's statistics."""
        return self.rounded + self.exact

    @property
    def wire_bytes(self) -> int:
        """The bytes of the state as sent to a joiner."""
        return round(VALUE_BYTES["none"] * (self.parameters + self.exact) + ROUNDED_BYTES * self.rounded)
