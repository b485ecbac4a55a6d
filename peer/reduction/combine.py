"""A reducer's handling of the parts that senders bring: it holds them, and averages them when all have come.

hivemind adds each part to a sum as it arrives: so the last bits depend on who came first, and a part that is found bad
later is in the sum already. Here nothing is added before everybody who is still in the round has brought the same part,
and then in the order of the senders: the same parts give the same bits, whatever the order of arrival, and a sender
that was banned meanwhile is in none of it. A sender has one part here at a time. A sender that has named the weight 0
brings no parts. Used by `peer.averaging.all_reduce`.

The average is the mean, or one on which no sender has much influence, whatever it sends: centred clipping. Karimireddy,
He, Jaggi 2021 (arXiv 2012.10333), by each reducer for its own parts as in Gorbunov et al. 2021 (arXiv 2106.11257). The
average is looked for around a centre, the accepted average of the round before: each sender's difference from the
centre is shortened to a radius, and the mean of these moves the centre; a few times. The paper's senders have equal
batches. Here a sender with few samples has a noisier gradient, by the root of its share; so its radius is larger by
that: `radius` times the usual norm of the average, divided by the root of its share.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import torch
from hivemind.averaging.partition import AllreduceException, BannedException, TensorPartReducer


class RefusedPart(AllreduceException):
    """The error for a part that no honest peer sends; its message continues the sender's name."""


@dataclass(frozen=True)
class WeightedPart:
    """One sender's numbers for the part that is being reduced."""

    sender: int  # its index among the round's senders
    part: torch.Tensor  # float32; not to be changed
    weight: float  # samples


@dataclass(frozen=True)
class ReducedPart:
    """The answer to all senders of a part."""

    average: torch.Tensor
    counted: Mapping[int, float]  # sender -> the weight with which its part is in the average

    @property
    def weight(self) -> float:
        """The weight of all who are in it."""
        return sum(self.counted.values())


Combine = Callable[[int, Sequence[WeightedPart]], ReducedPart]  # (index of the part, in the order of senders)


def weighted_mean(part_index: int, contributions: Sequence[WeightedPart]) -> torch.Tensor:
    """Compute the mean by weight; zero where all weights are zero."""
    del part_index
    total = torch.zeros_like(contributions[0].part)
    for given in contributions:
        total.add_(given.part, alpha=given.weight)
    return total.div_(sum(given.weight for given in contributions) or 1.0)


def reduced_mean(part_index: int, contributions: Sequence[WeightedPart]) -> ReducedPart:
    """Answer with the mean by weight; a `Combine`."""
    return ReducedPart(weighted_mean(part_index, contributions), counted_of(contributions))


def counted_of(contributions: Sequence[WeightedPart]) -> dict[int, float]:
    """Return the weight with which each sender's part counts."""
    return {given.sender: given.weight for given in contributions}


class PartReducer(TensorPartReducer):
    """hivemind's reducer with a way of its own to combine parts; see the module's docstring."""

    if TYPE_CHECKING:
        current_part_future: asyncio.Future[ReducedPart]

    def __init__(
        self,
        part_shapes: Sequence[torch.Size],
        num_senders: int,
        combine: Combine = reduced_mean,
        unawaited: Collection[int] = (),
    ) -> None:
        """`unawaited`: senders whose parts count if they are here as soon as all others' are."""
        self._combine, self._unawaited = combine, frozenset(unawaited)
        self._held: dict[int, WeightedPart] = {}  # by sender: of the current part
        self._banned: set[int] = set()
        self._weightless: set[int] = set()  # senders that bring no parts
        self.counted: list[Mapping[int, float]] = []  # of each part that is averaged: sender -> its weight in that
        self.late: frozenset[int] = frozenset()  # senders that were still to bring a part when the round ended
        super().__init__(part_shapes, num_senders)

    @property
    def banned(self) -> frozenset[int]:
        """The senders that are out."""
        return frozenset(self._banned)

    @property
    def weightless(self) -> frozenset[int]:
        """The senders that have named the weight 0."""
        return frozenset(self._weightless)

    def reset_accumulators(self) -> None:
        """Go on to the next part, or end after the last."""
        self._held = {}
        if self.current_part_index >= self.num_parts - 1:
            self.finalize()
            return
        self.current_part_index += 1
        self.current_part_future = asyncio.Future()

    def finalize(self) -> None:
        """End the round; senders that have yet to bring the current part are late."""
        if not self.finished.is_set() and len(self.counted) < self.num_parts:
            self.late = self._absent()
        super().finalize()

    def _absent(self) -> frozenset[int]:
        """Return the senders in the round that are still to bring the current part."""
        return frozenset(range(self.num_senders)) - self._banned - self._weightless - self._held.keys()

    async def accumulate_part(
        self, sender_index: int, part_index: int, tensor_part: torch.Tensor, weight: float = 1.0
    ) -> ReducedPart:
        """Hold one sender's part until all others' are here, then return their average.

        Raises `BannedException` for a sender that is out, `AllreduceException` if the round has ended, and
        `RefusedPart` for a part that is not due: a sender's next part is looked at when its last is answered, so that
        only a sender with two streams at once can be ahead.
        """
        if sender_index in self._banned:
            raise BannedException(f"sender {sender_index} was banned")
        if self.finished.is_set():
            raise AllreduceException("the round has ended")
        if part_index != self.current_part_index or sender_index in self._held:
            raise RefusedPart(f"sent part {part_index}, which is not due")
        self.num_parts_received[sender_index] += 1
        self._held[sender_index] = WeightedPart(sender_index, tensor_part, weight)
        reduced = self.current_part_future
        self.check_current_part_finished()
        return await asyncio.shield(reduced)  # who stops waiting for it does not take it from the others

    def on_sender_failed(self, sender_index: int) -> None:
        """Stop waiting for this sender; its contribution to the current part does not count either."""
        self._banned.add(sender_index)
        self._held.pop(sender_index, None)
        self.check_current_part_finished()

    def on_sender_weightless(self, sender_index: int) -> None:
        """Stop waiting for this sender's parts: it has named the weight 0."""
        self._weightless.add(sender_index)
        self.num_parts_received[sender_index] = self.num_parts  # hivemind's reducer warns of parts that are missing
        self.check_current_part_finished()

    def check_current_part_finished(self) -> None:
        """Combine the current part if everybody who is awaited has brought it; the others that have not are out."""
        absent = self._absent()
        if self.finished.is_set() or not self._held or not absent <= self._unawaited:
            return
        self._banned |= absent
        contributions = [self._held[sender] for sender in sorted(self._held)]
        reduced = self._combine(self.current_part_index, contributions)
        self.counted.append(reduced.counted)
        self.current_part_future.set_result(reduced)
        self.reset_accumulators()


def weighted_median(contributions: Sequence[WeightedPart]) -> torch.Tensor:
    """Compute the median by weight, value by value: half of the weight is on either side."""
    ordered, order = torch.stack([given.part for given in contributions]).sort(dim=0)
    weights = torch.tensor([given.weight for given in contributions], dtype=torch.float64)
    below = weights[order].cumsum(dim=0)
    middle = (below < 0.5 * weights.sum()).sum(dim=0).clamp_(max=len(contributions) - 1)
    return ordered.gather(0, middle.unsqueeze(0)).squeeze(0)


def centered_clipping(
    contributions: Sequence[WeightedPart], centre: torch.Tensor | None, usual: float, radius: float, iterations: int
) -> torch.Tensor:
    """Average one part, with each sender's difference from the centre clipped.

    `centre` is the part's last accepted average and `usual` the norm that its averages have. Without either, the
    centre is the senders' median, value by value, and the usual norm the median of their distances from it, each times
    the root of the sender's share.
    """
    weighing = [given for given in contributions if given.weight > 0]
    if not weighing:
        return weighted_mean(0, contributions)
    total = sum(given.weight for given in weighing)
    roots = [math.sqrt(given.weight / total) for given in weighing]
    known = centre is not None and usual > 0
    found = centre.clone() if centre is not None and known else weighted_median(weighing)
    if not known:
        usual = median(_norm(given.part - found) * root for given, root in zip(weighing, roots, strict=True))
    for _ in range(iterations):
        moved = torch.zeros_like(found)
        for given, root in zip(weighing, roots, strict=True):
            difference = given.part - found
            moved.add_(difference, alpha=root * root * _shortened(_norm(difference), radius * usual / root))
        found.add_(moved)
    return found


def _norm(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _shortened(norm: float, most: float) -> float:
    return 1.0 if norm <= most else most / norm
