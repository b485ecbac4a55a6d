"""Codes of gradients: the part of an averager that decides which numbers of a gradient a round averages.

Here all numbers are averaged as they are. `peer.averaging.power_sgd` averages factors of matrices, and
`peer.averaging.error_feedback` few values of each tensor; both keep a remainder for later steps. An averager has one
code at a time, and another one from a step on if the run's operator says so (`peer.config.steering`). Two processes
hold a code each: the trainer's calls `load`, `settle` and `forget`, the averager's calls `average`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class Reduce(Protocol):
    """An exact round of the group, in place; raises unless every value came back."""

    async def __call__(self, values: Sequence[torch.Tensor], half: bytes = b"") -> None:
        """Average these tensors; `half`: the name of a round before the last."""
        ...


Factors = tuple[torch.Tensor, torch.Tensor]  # left (rank, rows) and right (rank, columns) of a matrix


class GradientCode:
    """The code of whole gradients, which leaves nothing for later steps; other codes are derived from it."""

    halves: tuple[bytes, ...] = (b"",)  # the rounds that a group runs one after another

    @property
    def factors(self) -> Mapping[int, Factors]:
        """The factors of the matrices that were settled last, by the tensors' index."""
        return {}

    @property
    def remainders(self) -> Mapping[int, torch.Tensor]:
        """The remainders of earlier steps, sums over samples, by the tensors' index."""
        return {}

    def remainder_shapes(self, shapes: Sequence[torch.Size]) -> dict[int, torch.Size]:
        """Return the shapes of the remainders of tensors of these shapes."""
        del shapes
        return {}

    def resume(self, remainders: Mapping[int, torch.Tensor]) -> None:
        """Go on with the remainders of an earlier session, of all tensors that have one; none: begin without."""

    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Replace mean gradients over so many samples by the numbers that are to be averaged."""

    async def average(self, tensors: Sequence[torch.Tensor], reduce: Reduce) -> None:
        """Average numbers that were loaded; where that fails nothing may change for good."""
        await reduce(tensors)

    def settle(self, tensors: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], *, averaged: bool) -> None:
        """Put the step's gradients into the tensors that were loaded, and keep the remainders for a later step.

        `sums`: this peer's gradients, of which the means were loaded. `averaged`: a round has averaged the numbers;
        otherwise this peer was alone, and takes its step from all that it has.
        """

    def forget(self) -> None:
        """Drop the remainders: they belong to a state that this peer no longer has, or others may have counted them."""
