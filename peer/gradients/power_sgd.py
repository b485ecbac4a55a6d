"""PowerSGD: sends a large gradient as the product of two thin matrices, with error feedback.

Vogels et al. 2019 (arXiv 1905.13727). The peers first average the images of a few directions under
each peer's matrix M, then the coordinates of M in these images: rank * (rows + columns) values
instead of rows * columns. The remainder is added to the peer's gradient of the next step. Equal
averages give equal bits on any machine, because sums are rounded in a fixed order.
Both halves are exact rounds of one group. Unlike in hivemind's own, a failed round changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import torch

from peer.gradients.gradient_codes import Factors, GradientCode, Reduce
from peer.reduction.sizes import shrinks

FIRST = b".images"  # suffix of the group ID for the first half of a round
DEPENDENT = 1e-6  # relative norm below which the rest of a direction is rounding noise
CACHED_VALUES = 2**16  # float32 values that fit into a processor's cache


def first_directions(index: int, shape: torch.Size) -> torch.Tensor:
    """Return random directions that are the same on all peers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(index))


def total(values: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension by pairwise halving, in the same order on every processor."""
    while values.shape[-1] > 1:
        half, odd = divmod(values.shape[-1], 2)
        sums = values[..., :half] + values[..., half : 2 * half]
        if odd:
            sums[..., 0] += values[..., -1]
        values = sums
    return values[..., 0]


def orthonormal(rows: torch.Tensor) -> torch.Tensor:
    """Orthonormalize rows (rank, length) by Gram-Schmidt in float64; a dependent row becomes zeros."""
    basis = rows.double()
    sizes = total(basis * basis).tolist()
    for number, row in enumerate(basis):
        size = float(total(row * row))
        if size <= DEPENDENT**2 * sizes[number]:
            row.zero_()
            continue
        row.mul_(1 / math.sqrt(size))
        rest = basis[number + 1 :]
        if len(rest):
            rest.sub_(total(rest * row)[:, None] * row)
    return basis.float()


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Compute left.T @ right, (rank, rows) and (rank, columns), in blocks that fit a cache."""
    result = torch.empty(left.shape[1], right.shape[1])
    rows_at_once = max(1, CACHED_VALUES // right.shape[1])
    for first in range(0, len(result), rows_at_once):
        some, rows = left[:, first : first + rows_at_once], result[first : first + rows_at_once]
        torch.outer(some[0], right[0], out=rows)
        for row, column in zip(some[1:], right[1:], strict=True):
            rows.add_(torch.outer(row, column))
    return result


class LowRank(GradientCode):
    """The gradient encoding of matrices as factors of a fixed rank, with one peer's remainders.

    A matrix's average is left.T @ right, the same on all peers. After a round the factors are
    stored in the memory of the matrix, which the trainer's process shares.
    """

    halves = (FIRST, b"")

    def __init__(self, shapes: Sequence[torch.Size], rank: int) -> None:
        self._rights = {  # index -> right factor (rank, columns): result of the last round, start of the next
            index: first_directions(index, torch.Size((rank, math.prod(shape[1:]))))
            for index, shape in enumerate(shapes)
            if shrinks(shape, rank)
        }
        self._factors: dict[int, Factors] = {}
        self._lost: dict[int, torch.Tensor] = {}  # index -> remainder (sum over samples); empty without samples
        self._samples = 0  # number of samples of the last `load`

    @property
    def factors(self) -> Mapping[int, Factors]:
        """The factors of the matrices averaged last, by tensor index."""
        return self._factors

    @property
    def remainders(self) -> Mapping[int, torch.Tensor]:
        """The remainders of earlier steps (sums over samples) by tensor index."""
        return self._lost

    def remainder_shapes(self, shapes: Sequence[torch.Size]) -> dict[int, torch.Size]:
        """Return the shapes of the remainders (matrices), by index, for these gradient shapes."""
        return {index: torch.Size((shapes[index][0], right.shape[1])) for index, right in self._rights.items()}

    def resume(self, remainders: Mapping[int, torch.Tensor]) -> None:
        """Load an earlier session's remainders of all tensors; an empty mapping means none."""
        self._lost = dict(remainders)

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Add the remainders to mean gradients over `samples` samples; without samples, keep them.

        Remainders are sums, so they are independent of the peer's share of the batch.
        """
        self._samples = samples
        if samples:
            for index, lost in self._lost.items():
                as_matrix(tensors[index]).add_(lost, alpha=1 / samples)

    async def average(self, tensors: Sequence[torch.Tensor], reduce: Reduce) -> None:
        """Average the images of the matrices, then their coordinates and all other tensors.

        The round counts the samples of its second half, which contains the actual averages.
        """
        images = await asyncio.to_thread(self.images, tensors)
        if images:
            await reduce(images, FIRST)
        lefts = await asyncio.to_thread(lambda: [orthonormal(image) for image in images])
        values = await asyncio.to_thread(self.coordinates, tensors, lefts)
        await reduce(values)
        self.take(tensors, lefts, values)

    @torch.no_grad()
    def images(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values of the first half: the images of the directions, each (rank, rows)."""
        return [_directions(index, right) @ as_matrix(tensors[index]).T for index, right in self._rights.items()]

    @torch.no_grad()
    def coordinates(self, tensors: Sequence[torch.Tensor], lefts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the matrices' coordinates, (rank, columns), and copies of the other tensors."""
        matrices = (as_matrix(tensors[index]) for index in self._rights)
        rest = [tensor.clone() for index, tensor in enumerate(tensors) if index not in self._rights]
        return [left @ matrix for left, matrix in zip(lefts, matrices, strict=True)] + rest

    @torch.no_grad()
    def take(
        self, tensors: Sequence[torch.Tensor], lefts: Sequence[torch.Tensor], averages: Sequence[torch.Tensor]
    ) -> None:
        """Replace this peer's values with the averages; matrices are stored as factors.

        Raises `OverflowError`, without any change, if a value of a product could be infinite.
        """
        rights, rest = averages[: len(lefts)], averages[len(lefts) :]
        if not all(torch.isfinite(2 * right.abs().sum(dim=0)).all() for right in rights):
            raise OverflowError("the product of the averaged factors is not finite")
        for index, left, right in zip(self._rights, lefts, rights, strict=True):
            for place, factor in zip(_factors_in(tensors[index], len(left)), (left, right), strict=True):
                place.copy_(factor)
            self._rights[index].copy_(right)
        others = (tensor for index, tensor in enumerate(tensors) if index not in self._rights)
        for tensor, average in zip(others, rest, strict=True):
            tensor.copy_(average)

    @torch.no_grad()
    def settle(self, tensors: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], *, averaged: bool) -> None:
        """Replace the factors with the averaged matrices, and update this peer's remainders.

        A remainder is the part of the peer's own values outside the common directions. If it were
        the difference from the average, some of it would never be sent after a peer has left. A
        peer without a round (`averaged` is False) uses its whole gradient and has no remainder.
        """
        self._factors = {}
        if not averaged:
            self.forget()
            return
        for index, last in self._rights.items():
            matrix = as_matrix(tensors[index])
            left, right = self._factors[index] = _copies(_factors_in(tensors[index], len(last)))
            if self._samples:
                self._lost[index] = self._remainder(index, as_matrix(sums[index]), left)
            matrix.copy_(product(left, right))

    def _remainder(self, index: int, sums: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        own = sums / self._samples
        if index in self._lost:
            own.add_(self._lost[index], alpha=1 / self._samples)
        lost = own.addmm(left.T, left @ own, alpha=-1).mul_(self._samples)
        return lost if bool(torch.isfinite(lost).all()) else torch.zeros_like(lost)

    def forget(self) -> None:
        """Drop the remainders: they no longer apply, or other peers may have counted them."""
        self._lost = {}


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as a matrix, with its first dimension as rows."""
    return tensor.view(len(tensor), -1)


def _directions(index: int, right: torch.Tensor) -> torch.Tensor:
    """Return orthonormal directions (rank, columns): the last round's, or random ones."""
    found = orthonormal(right)
    none = found.abs().amax(dim=1, keepdim=True) == 0
    return orthonormal(torch.where(none, first_directions(index, found.shape), found))


def _copies(factors: Factors) -> Factors:
    left, right = factors
    return left.clone(), right.clone()


def _factors_in(tensor: torch.Tensor, rank: int) -> Factors:
    """View the beginning of a tensor as the factors of its matrix, (rank, rows) and (rank, columns)."""
    rows, columns = as_matrix(tensor).shape
    places = tensor.view(-1)[: rank * (rows + columns)]
    return places[: rank * rows].view(rank, rows), places[rank * rows :].view(rank, columns)
