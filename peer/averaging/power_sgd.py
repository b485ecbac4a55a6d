"""PowerSGD: a large gradient as the product of two thin matrices, and its remainder kept for later steps.

Vogels et al. 2019 (arXiv 1905.13727). Of a matrix M of each peer, peers average first M's image of a few directions,
then M's coordinates in that image: rank * (rows + columns) values in place of rows * columns. The remainder of M is
added to the peer's own gradient of the next step (error feedback). The same averages give the same bits on any machine:
sums and products are rounded one by one, in an order that no processor chooses.

hivemind's own averager averages differences, lets each peer's numbers drift from the others', changes its buffers in
rounds that fail, and multiplies by factors that grow with the gradient's square, too small for 16 bits. Here both
halves of a round are exact ones of the same group, and only a round that brought every value changes anything.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import torch

from peer.averaging.gradient_codes import Factors, GradientCode, Reduce
from peer.reduction.sizes import shrinks

FIRST = b".images"  # after the group's id: what its peers average before the rest
DEPENDENT = 1e-6  # a direction of which less than this share is left beside the others is rounding noise
CACHED_VALUES = 2**16  # of float32: a product's rows that are added up without leaving the processor


def first_directions(index: int, shape: torch.Size) -> torch.Tensor:
    """Draw random directions that are the same on all peers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(index))


def total(values: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension by adding halves to each other, in an order that no processor chooses."""
    while values.shape[-1] > 1:
        half, odd = divmod(values.shape[-1], 2)
        sums = values[..., :half] + values[..., half : 2 * half]
        if odd:
            sums[..., 0] += values[..., -1]
        values = sums
    return values[..., 0]


def orthonormal(rows: torch.Tensor) -> torch.Tensor:
    """Orthonormalize rows (rank, length) by Gram-Schmidt in float64; return float32, zeros for a dependent row."""
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
    """Multiply left.T @ right, of shapes (rank, rows) and (rank, columns), a few rows at once that fit a cache."""
    result = torch.empty(left.shape[1], right.shape[1])
    rows_at_once = max(1, CACHED_VALUES // right.shape[1])
    for first in range(0, len(result), rows_at_once):
        some, rows = left[:, first : first + rows_at_once], result[first : first + rows_at_once]
        torch.outer(some[0], right[0], out=rows)
        for row, column in zip(some[1:], right[1:], strict=True):
            rows.add_(torch.outer(row, column))
    return result


class LowRank(GradientCode):
    """The code of gradients that averages matrices by factors of one rank, with one peer's remainders.

    A matrix's average is left.T @ right, the same factors on all peers. After a round they lie in the matrix's own
    place, where the averager's process leaves them to the trainer's.
    """

    halves = (FIRST, b"")

    def __init__(self, shapes: Sequence[torch.Size], rank: int) -> None:
        self._rights = {  # by index, (rank, columns): of the last round's factors, from which the next one begins
            index: first_directions(index, torch.Size((rank, math.prod(shape[1:]))))
            for index, shape in enumerate(shapes)
            if shrinks(shape, rank)
        }
        self._factors: dict[int, Factors] = {}
        self._lost: dict[int, torch.Tensor] = {}  # by index: sums over samples; none on a peer without samples
        self._samples = 0  # behind the numbers last loaded

    @property
    def factors(self) -> Mapping[int, Factors]:
        """The factors of the matrices that were settled last, by the tensors' index."""
        return self._factors

    @property
    def remainders(self) -> Mapping[int, torch.Tensor]:
        """The remainders of earlier steps, sums over samples, by the tensors' index."""
        return self._lost

    def remainder_shapes(self, shapes: Sequence[torch.Size]) -> dict[int, torch.Size]:
        """Return the shapes of the remainders of tensors of these shapes, as matrices."""
        return {index: torch.Size((shapes[index][0], right.shape[1])) for index, right in self._rights.items()}

    def resume(self, remainders: Mapping[int, torch.Tensor]) -> None:
        """Go on with the remainders of an earlier session, of all tensors that have one; none: begin without."""
        self._lost = dict(remainders)

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Add the remainders to mean gradients over so many samples; without samples the remainders go on waiting.

        A remainder counts as a sum, as gradients do, so that nothing grows or shrinks when a peer's share of the batch
        changes.
        """
        self._samples = samples
        if samples:
            for index, lost in self._lost.items():
                as_matrix(tensors[index]).add_(lost, alpha=1 / samples)

    async def average(self, tensors: Sequence[torch.Tensor], reduce: Reduce) -> None:
        """Average matrices' images, then their coordinates with all other tensors.

        The group's samples are those of the second half: any images give directions, coordinates are the average.
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
        """Return the values that are averaged first: of each matrix, the image of the directions, (rank, rows)."""
        return [_directions(index, right) @ as_matrix(tensors[index]).T for index, right in self._rights.items()]

    @torch.no_grad()
    def coordinates(self, tensors: Sequence[torch.Tensor], lefts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values that are averaged next: matrices' coordinates (rank, columns), copies of other tensors."""
        matrices = (as_matrix(tensors[index]) for index in self._rights)
        rest = [tensor.clone() for index, tensor in enumerate(tensors) if index not in self._rights]
        return [left @ matrix for left, matrix in zip(lefts, matrices, strict=True)] + rest

    @torch.no_grad()
    def take(
        self, tensors: Sequence[torch.Tensor], lefts: Sequence[torch.Tensor], averages: Sequence[torch.Tensor]
    ) -> None:
        """Put the averages of a round, of matrices the factors, in place of this peer's own numbers.

        Raises `OverflowError`, and changes nothing, if a value of a product could be infinite.
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
        """Put the averages of matrices in place of their factors, for a step, and keep this peer's remainders.

        A peer that was alone has no remainders. A remainder is the part of the peer's own numbers beside the common
        directions, not their difference from the average: that would never be paid back if another peer left.
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
        """Drop the remainders: they belong to a state that this peer no longer has, or others may have counted them."""
        self._lost = {}


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as a matrix, with its first dimension as rows."""
    return tensor.view(len(tensor), -1)


def _directions(index: int, right: torch.Tensor) -> torch.Tensor:
    """Return orthonormal directions (rank, columns): those of the last round, random ones where there are none."""
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
