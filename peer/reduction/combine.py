"""A reducer's buffer of parts, averaged once all senders' parts have arrived.

Parts are summed in sender order, once every sender still in the round has sent the same part, so
the last bits are the same for all. Banned senders are excluded. A sender with weight 0 sends no
parts. Used by `peer.averaging.reducer`.

The average is either the mean or centred clipping, which limits each sender's influence
(Karimireddy, He, Jaggi 2021, arXiv 2012.10333; applied by each reducer to its own parts as in
Gorbunov et al. 2021, arXiv 2106.11257). The first centre is the accepted average of the previous
round. In each of a few iterations, each sender's difference from the centre is clipped to a radius,
and the mean of these differences moves the centre. In the paper, all senders have equal batches.
Here a sender with a small share of the samples has a noisier gradient. A sender's radius is
therefore `radius` times the usual norm of the average, divided by the square root of its share.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from hivemind.averaging.partition import AllreduceException, BannedException


class RefusedPart(AllreduceException):
    """Raised for a part that no honest peer would send; the message does not name the sender."""


@dataclass(frozen=True)
class WeightedPart:
    """One sender's values of the part being reduced."""

    sender: int  # index among the round's senders
    part: torch.Tensor  # float32; must not be modified
    weight: float  # number of samples


@dataclass(frozen=True)
class ReducedPart:
    """The average of one part, which all senders receive."""

    average: torch.Tensor
    counted: Mapping[int, float]  # sender -> weight of its part in the average

    @property
    def weight(self) -> float:
        """The total weight in the average."""
        return sum(self.counted.values())


Combine = Callable[[int, Sequence[WeightedPart]], ReducedPart]  # (part's index, contributions by sender)


def weighted_mean(part_index: int, contributions: Sequence[WeightedPart]) -> torch.Tensor:
    """Return the weighted mean; zero if all weights are zero."""
    del part_index
    total = torch.zeros_like(contributions[0].part)
    for given in contributions:
        total.add_(given.part, alpha=given.weight)
    return total.div_(sum(given.weight for given in contributions) or 1.0)


def reduced_mean(part_index: int, contributions: Sequence[WeightedPart]) -> ReducedPart:
    """Return the weighted mean; implements `Combine`."""
    return ReducedPart(weighted_mean(part_index, contributions), counted_of(contributions))


def counted_of(contributions: Sequence[WeightedPart]) -> dict[int, float]:
    """Return each sender's weight."""
    return {given.sender: given.weight for given in contributions}


class PartReducer:
    """A buffer of the senders' parts, which applies a `Combine` function to each complete part."""

    def __init__(
        self,
        part_shapes: Sequence[torch.Size],
        senders: int,
        combine: Combine = reduced_mean,
        unawaited: Collection[int] = (),
    ) -> None:
        """Set up the buffer; the reducer does not wait for `unawaited` senders once all others have sent."""
        self.part_shapes, self.num_parts = tuple(part_shapes), len(part_shapes)
        self._senders, self._combine, self._unawaited = frozenset(range(senders)), combine, frozenset(unawaited)
        self._held: dict[int, WeightedPart] = {}  # sender -> its current part
        self._banned: set[int] = set()
        self._weightless: set[int] = set()  # senders that have no parts
        self.counted: list[Mapping[int, float]] = []  # for each averaged part: sender -> its counted weight
        self.late: frozenset[int] = frozenset()  # senders whose part was missing when the round ended
        self.finished = asyncio.Event()
        self._reduced: asyncio.Future[ReducedPart] = asyncio.get_running_loop().create_future()  # the current part
        if not self.num_parts:
            self.finalize()

    @property
    def banned(self) -> frozenset[int]:
        """The indices of the banned senders."""
        return frozenset(self._banned)

    @property
    def weightless(self) -> frozenset[int]:
        """The indices of the senders with weight 0."""
        return frozenset(self._weightless)

    def finalize(self) -> None:
        """End the round; senders whose current part is missing are late."""
        if self.finished.is_set():
            return
        if len(self.counted) < self.num_parts:
            self.late = self._absent()
        self._reduced.cancel()
        self.finished.set()

    def _absent(self) -> frozenset[int]:
        return self._senders - self._banned - self._weightless - self._held.keys()

    async def accumulate_part(
        self, sender: int, part_index: int, part: torch.Tensor, weight: float = 1.0
    ) -> ReducedPart:
        """Store one sender's part until all others have arrived, then return the average.

        Raises `BannedException` for a banned sender, `AllreduceException` after the round's end,
        and `RefusedPart` for an unexpected part. A sender's next part is read only after the
        previous one is answered, so only a sender with two streams can be ahead.
        """
        if sender in self._banned:
            raise BannedException(f"sender {sender} was banned")
        if self.finished.is_set():
            raise AllreduceException("the round has ended")
        if part_index != len(self.counted) or sender in self._held:
            raise RefusedPart(f"sent part {part_index}, which is not due")
        self._held[sender] = WeightedPart(sender, part, weight)
        reduced = self._reduced
        self._reduce_if_complete()
        return await asyncio.shield(reduced)  # shielded: other callers await the same future

    def on_sender_failed(self, sender: int) -> None:
        """Ban this sender: stop waiting for it, and drop its contribution to the current part."""
        self._banned.add(sender)
        self._held.pop(sender, None)
        self._reduce_if_complete()

    def on_sender_weightless(self, sender: int) -> None:
        """Stop waiting for the parts of this sender, which has weight 0."""
        self._weightless.add(sender)
        self._reduce_if_complete()

    def _reduce_if_complete(self) -> None:
        """Combine the part once all awaited senders have sent it; ban missing unawaited senders."""
        absent = self._absent()
        if self.finished.is_set() or not self._held or not absent <= self._unawaited:
            return
        self._banned |= absent
        reduced = self._combine(len(self.counted), [self._held[sender] for sender in sorted(self._held)])
        self.counted.append(reduced.counted)
        self._reduced.set_result(reduced)
        self._held = {}
        if len(self.counted) == self.num_parts:
            self.finalize()
        else:
            self._reduced = asyncio.get_running_loop().create_future()


def weighted_median(contributions: Sequence[WeightedPart]) -> torch.Tensor:
    """Return the elementwise weighted median."""
    ordered, order = torch.stack([given.part for given in contributions]).sort(dim=0)
    weights = torch.tensor([given.weight for given in contributions], dtype=torch.float64)
    below = weights[order].cumsum(dim=0)
    middle = (below < 0.5 * weights.sum()).sum(dim=0).clamp_(max=len(contributions) - 1)
    return ordered.gather(0, middle.unsqueeze(0)).squeeze(0)


def centered_clipping(
    contributions: Sequence[WeightedPart], centre: torch.Tensor | None, usual: float, radius: float, iterations: int
) -> torch.Tensor:
    """Average one part by centred clipping.

    `centre` is the part's last accepted average, and `usual` the usual norm of its averages. If
    either is unknown, the centre is the elementwise weighted median of the senders' parts, and the
    usual norm is the median of (distance from the centre * square root of the sender's share).
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
