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
import multiprocessing as mp
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from hivemind.averaging.group_info import GroupInfo

from peer.averaging.averager import AveragedGroup, SwarmGradientAverager
from peer.averaging.shares import part_size
from peer.reduction.sizes import shrinks

FIRST = b".images"  # after the group's id: what its peers average before the rest
DEPENDENT = 1e-6  # a direction of which less than this share is left beside the others is rounding noise
CACHED_VALUES = 2**16  # of float32: a product's rows that are added up without leaving the processor


@dataclass(frozen=True)
class Factors:
    """The factors of one matrix's average, left.T @ right, on all peers; the next round begins with right."""

    index: int  # of the tensor, in the model's order
    left: torch.Tensor  # (rank, rows), orthonormal
    right: torch.Tensor  # (rank, columns)

    def directions(self) -> torch.Tensor:
        """Return orthonormal directions (rank, columns): those of the last round, random ones where there are none."""
        found = orthonormal(self.right)
        none = found.abs().amax(dim=1, keepdim=True) == 0
        return orthonormal(torch.where(none, first_directions(self.index, found.shape), found))


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


class LowRank:
    """One peer's factors, in memory that it shares with the process that averages, and its remainders."""

    def __init__(self, shapes: Sequence[torch.Size], rank: int) -> None:
        self.factors = [
            _shared_factors(index, shape, rank) for index, shape in enumerate(shapes) if shrinks(shape, rank)
        ]
        self._shrunk = {factors.index for factors in self.factors}
        self._averaged = mp.Value("b", False)  # whether the factors are those of the numbers last loaded
        self._lost: dict[int, torch.Tensor] = {}  # by index: sums over samples; none on a peer without samples
        self._samples = 0  # behind the numbers last loaded

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Add the remainders to mean gradients over so many samples; without samples the remainders go on waiting.

        A remainder counts as a sum, as gradients do, so that nothing grows or shrinks when a peer's share of the batch
        changes.
        """
        self._averaged.value, self._samples = False, samples
        if samples:
            for index, lost in self._lost.items():
                as_matrix(tensors[index]).add_(lost, alpha=1 / samples)

    @torch.no_grad()
    def images(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values that are averaged first: of each matrix, the image of the directions, (rank, rows)."""
        return [factors.directions() @ as_matrix(tensors[factors.index]).T for factors in self.factors]

    @torch.no_grad()
    def coordinates(self, tensors: Sequence[torch.Tensor], lefts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values that are averaged next: matrices' coordinates (rank, columns), copies of other tensors."""
        matrices = (as_matrix(tensors[factors.index]) for factors in self.factors)
        rest = [tensor.clone() for index, tensor in enumerate(tensors) if index not in self._shrunk]
        return [left @ matrix for left, matrix in zip(lefts, matrices, strict=True)] + rest

    @torch.no_grad()
    def take(
        self, tensors: Sequence[torch.Tensor], lefts: Sequence[torch.Tensor], averages: Sequence[torch.Tensor]
    ) -> None:
        """Keep the averages of a round; matrices stay this peer's own numbers until `restore`.

        Raises `OverflowError`, and changes nothing, if a value of a product could be infinite.
        """
        rights, rest = averages[: len(lefts)], averages[len(lefts) :]
        if not all(torch.isfinite(2 * right.abs().sum(dim=0)).all() for right in rights):
            raise OverflowError("the product of the averaged factors is not finite")
        for factors, left, right in zip(self.factors, lefts, rights, strict=True):
            factors.left.copy_(left)
            factors.right.copy_(right)
        others = (tensor for index, tensor in enumerate(tensors) if index not in self._shrunk)
        for tensor, average in zip(others, rest, strict=True):
            tensor.copy_(average)
        self._averaged.value = True

    @torch.no_grad()
    def restore(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the averages in place of this peer's numbers, for a step, and keep the remainders of these numbers.

        A peer that was alone has no remainders. A remainder is the part of the peer's own numbers beside the common
        directions, not their difference from the average: that would never be paid back if another peer left.
        """
        if not self._averaged.value:
            self.forget()
            return
        for factors in self.factors:
            matrix = as_matrix(tensors[factors.index])
            if self._samples:
                lost = matrix.addmm(factors.left.T, factors.left @ matrix, alpha=-1).mul_(self._samples)
                self._lost[factors.index] = lost if bool(torch.isfinite(lost).all()) else torch.zeros_like(lost)
            matrix.copy_(product(factors.left, factors.right))

    def forget(self) -> None:
        """Drop the remainders: they belong to a state that this peer no longer has, or others may have counted them."""
        self._lost = {}


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as a matrix, with its first dimension as rows."""
    return tensor.view(len(tensor), -1)


def _shared_factors(index: int, shape: torch.Size, rank: int) -> Factors:
    right = first_directions(index, torch.Size((rank, math.prod(shape[1:]))))
    factors = Factors(index, torch.zeros(rank, shape[0]), right)
    for tensor in (factors.left, factors.right):
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return factors


class PowerSGDAverager(SwarmGradientAverager):
    """An averager of gradients like `SwarmGradientAverager` that averages matrices by factors of the given rank."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, rank: int, **kwargs: Any) -> None:
        parameters = tuple(parameters)
        self._low_rank = LowRank([parameter.shape for parameter in parameters], rank)
        super().__init__(parameters, **kwargs)

    def load_accumulators_into_averager_(self) -> None:
        """Put the mean gradient over the samples that are due, with earlier remainders, into the averaged tensors."""
        super().load_accumulators_into_averager_()
        with self.get_tensors() as averaged:
            self._low_rank.load(averaged, self.due_samples)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Put the averages into the averaged tensors, then lend `.grad` to them for a step."""
        with self.get_tensors() as averaged:
            self._low_rank.restore(averaged)
        with super().making_room():
            yield

    def forget_remainders(self) -> None:
        """Drop what was lost in earlier rounds."""
        self._low_rank.forget()

    @contextmanager
    def _register_allreduce_group(self, group_info: GroupInfo) -> Iterator[None]:
        """Let others send the parts of either half; senders for a half that does not come are released."""
        halves = (group_info.group_id + FIRST, group_info.group_id)
        self._running_groups[halves[0]] = asyncio.Future()
        with super()._register_allreduce_group(group_info):
            try:
                yield
            finally:
                for half in halves:
                    self._running_groups[half].cancel()  # nothing happens to one that has begun
                del self._running_groups[halves[0]]

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs: Any
    ) -> AveragedGroup:
        """Average matrices' images, then their coordinates with all other tensors; raises if a value is missing.

        The group's samples are those of the second half: any images give directions, coordinates are the average.
        """
        del group_id
        began, low_rank = time.perf_counter(), self._low_rank

        async def average(values: Sequence[torch.Tensor], half: bytes) -> AveragedGroup:
            size_bytes = 2 * sum(map(torch.Tensor.numel, values))
            options = kwargs | {"part_size_bytes": part_size(size_bytes, group_info.group_size)}
            return await super(PowerSGDAverager, self)._run_allreduce_inplace_(values, group_info, half, **options)

        received_bytes = 0
        images = await asyncio.to_thread(low_rank.images, tensors)
        if images:
            received_bytes = (await average(images, group_info.group_id + FIRST)).averaged_bytes
        lefts = await asyncio.to_thread(lambda: [orthonormal(image) for image in images])
        values = await asyncio.to_thread(low_rank.coordinates, tensors, lefts)
        group = await average(values, group_info.group_id)
        low_rank.take(tensors, lefts, values)
        seconds = time.perf_counter() - began
        return replace(group, averaged_bytes=group.averaged_bytes + received_bytes, seconds=seconds)
