"""Gradient encodings, which determine the values that an averaging round averages.

The class here averages all values unchanged. `peer.gradients.power_sgd` averages factors of
matrices, and keeps remainders. The operator can change a run's encoding from a given step
(`peer.config.steering`). The trainer's process calls `load`, `settle` and `forget`; the node's
process calls `average`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class Reduce(Protocol):
    """An exact in-place averaging round of the group; raises an exception if a value is missing."""

    async def __call__(self, values: Sequence[torch.Tensor], half: bytes = b"") -> None:
        """Average these tensors; `half` names the round unless it is the group's last round."""
        ...


Factors = tuple[torch.Tensor, torch.Tensor]  # left (rank, rows) and right (rank, columns) factors of a matrix


class GradientCode:
    """The encoding of whole gradients, without remainders; base class of PowerSGD's encoding."""

    halves: tuple[bytes, ...] = (b"",)  # names of the successive rounds of a group

    @property
    def factors(self) -> Mapping[int, Factors]:
        """The factors of the matrices averaged last, by tensor index."""
        return {}

    @property
    def remainders(self) -> Mapping[int, torch.Tensor]:
        """The remainders of earlier steps (sums over samples) by tensor index."""
        return {}

    def remainder_shapes(self, shapes: Sequence[torch.Size]) -> dict[int, torch.Size]:
        """Return the shapes of the remainders, by tensor index, if the gradients have these shapes."""
        del shapes
        return {}

    def resume(self, remainders: Mapping[int, torch.Tensor]) -> None:
        """Load an earlier session's remainders of all tensors; an empty mapping means none."""

    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Replace mean gradients over `samples` samples with the values to average."""

    async def average(self, tensors: Sequence[torch.Tensor], reduce: Reduce) -> None:
        """Average the loaded values; an exception must leave no lasting change."""
        await reduce(tensors)

    def settle(self, tensors: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], *, averaged: bool) -> None:
        """Write the step's gradients to the loaded tensors; keep the remainders for later steps.

        `sums`: this peer's gradients, whose means were loaded. `averaged`: a round has averaged the
        values; otherwise this peer was alone and uses its whole gradient.
        """

    def forget(self) -> None:
        """Drop the remainders: they no longer apply, or other peers may have counted them."""
