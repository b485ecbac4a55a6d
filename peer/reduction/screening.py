"""Screening of senders' parts: pure functions that accept, scale down or refuse parts.

Parts that no honest peer sends are refused, such as non-finite values or negative weights. Parts
that are far too large are scaled down, so that no sender dominates.

An honest sender contributes (its weight / total weight) * its part to the average. The norm of this
contribution, divided by the norm of the average, is the sender's share if gradients agree, and the
square root of that share if they are pure noise. The contribution's norm is therefore hardly
larger than that of the average, or of any single gradient. Both norms are known: the former from
recent rounds (`NormHistory`; every peer receives all averages), the latter from this peer's own
gradient and from the median of three or more senders. With fewer senders and no gradient of its
own, a peer uses the smaller of the senders' norms, because norms may have grown.

A tensor's entire gradient may lie in one of its many parts (the rows of frequent words). Limits are
therefore norms of whole tensors: no part of an honest gradient is larger than the whole.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from peer.reduction.combine import RefusedPart

REMEMBERED_ROUNDS = 16
LEAST_ROUNDS = 4  # minimum number of rounds for a usual norm
SPREADS = 6.0  # tolerated number of standard deviations above the median
SPREAD_OF_DEVIATION = 1.4826  # ratio of standard to median absolute deviation for a normal distribution
LEAST_FACTOR, MOST_FACTOR = 4.0, 32.0  # bounds of the usual limit in multiples of the median
MARGIN = 4.0  # multiple of this round's reference norm up to which a contribution is always allowed
MOST_MARGIN = 1000.0  # multiple of the reference norm above which a contribution is never allowed
GROSS = 10.0  # multiple of the limit above which a part is ignored
LEAST_SENDERS = 3  # minimum number of senders for a median


@dataclass(frozen=True)
class PartPlace:
    """The index of a part's tensor, and the fraction of the tensor's values in the part."""

    tensor: int  # index in the order of the averaged tensors
    share: float  # fraction of the tensor's values


@dataclass(frozen=True)
class Yardsticks:
    """The reference norms of one reducer in a round, for whole tensors."""

    sizes: Sequence[int]  # number of values of each tensor
    own: Sequence[float]  # norms of this peer's own gradient; zero without samples
    usual: Sequence[float] | None  # limits from earlier averages; None: unknown

    def limit(self, place: PartPlace, norms: Sequence[float]) -> float:
        """Return the largest allowed norm of a sender's contribution to this part.

        The limit is infinite if no norm is known. `norms`: the norms of all weighted parts.
        """
        if self.usual is None and len(norms) < LEAST_SENDERS:
            return math.inf  # of two honest senders, one may have hundreds of times the other's norm
        usual = self.usual[place.tensor] if self.usual is not None else 0.0
        typical = median(norms) / math.sqrt(place.share) if len(norms) >= LEAST_SENDERS else 0.0
        reference = max(self.own[place.tensor], typical)
        if reference > 0:
            return min(max(usual, MARGIN * reference), MOST_MARGIN * reference)
        least = min(norms, default=0.0) / math.sqrt(place.share)
        return max(usual, MARGIN * least) or self._like_others(self.sizes[place.tensor])

    def gross(self, place: PartPlace, limit: float) -> float:
        """Return the norm above which a contribution to this part cannot be accidental.

        `limit` is the largest allowed norm. A norm within the usual range never exceeds the result,
        even if this round's reference is small: a peer that has learnt its own samples has almost
        no gradient. Without a history, the usual norm is estimated from the largest norm per value
        among this peer's own tensors, because the reference of a single tensor may be zero. For
        example, the reference of the sentence-order head is zero if two of three senders have as
        many swapped pairs as ordered ones.
        """
        usual = self._like_others(self.sizes[place.tensor]) if self.usual is None else self.usual[place.tensor]
        return GROSS * max(limit, usual)

    def _like_others(self, size: int) -> float:
        """Return the limit for a tensor without a known norm, from the largest norm per value."""
        norms = self.own if any(self.own) else self.usual or ()
        densest = max((norm / math.sqrt(values) for norm, values in zip(norms, self.sizes, strict=False)), default=0.0)
        return MARGIN * densest * math.sqrt(size) if densest > 0 else math.inf


def scale_to(limit: float, contribution: float) -> float:
    """Return the factor that limits a contribution of this norm; 1 within the limit, 0 on underflow."""
    factor = 1.0 if contribution <= limit else limit / contribution
    return factor if factor >= sys.float_info.min else 0.0


def require_weight(weight: float, before: float | None) -> None:
    """Raise `RefusedPart` for a weight that is negative, not finite, or changed in the round."""
    if not (math.isfinite(weight) and weight >= 0):
        raise RefusedPart(f"named the weight {weight:g}")
    if before is not None and weight != before:
        raise RefusedPart(f"named the weights {before:g} and {weight:g} in one round")


class NormHistory:
    """The L2 norms of every tensor's averages in this peer's last rounds."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, ...]] = deque(maxlen=REMEMBERED_ROUNDS)

    def add(self, norms: Sequence[float]) -> None:
        """Add the norms of a round's averages, in the tensors' order."""
        self._rounds.append(tuple(norms))

    def medians(self) -> list[float] | None:
        """Return the usual norm of each tensor's average; None before there is a history."""
        return (
            None if len(self._rounds) < LEAST_ROUNDS else [median(norms) for norms in zip(*self._rounds, strict=True)]
        )

    def limits(self) -> list[float] | None:
        """Return the `usual_limit` of each tensor; None before there is a history."""
        if len(self._rounds) < LEAST_ROUNDS:
            return None
        return [usual_limit(norms) for norms in zip(*self._rounds, strict=True)]


def usual_limit(norms: Sequence[float]) -> float:
    """Return the upper limit of usual norms: on a log scale, the median plus several deviations.

    The limit is 0 if most of the norms are zero.
    """
    logs = [math.log(norm) for norm in norms if norm > 0]
    if 2 * len(logs) <= len(norms):
        return 0.0
    middle = median(logs)
    spread = SPREADS * SPREAD_OF_DEVIATION * median(abs(value - middle) for value in logs)
    return math.exp(middle) * min(MOST_FACTOR, max(LEAST_FACTOR, math.exp(min(spread, 100.0))))
