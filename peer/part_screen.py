"""What of the parts that a sender brings is taken, and how much of it: pure decisions.

What no honest peer sends is refused: values that are no numbers, weights below zero. What is far too large is made
smaller, so that nobody's numbers drown those of the others.

Of honest senders each brings (its weight / all weight) * its part to the average. Where gradients agree, the norm of
that is its share of the average's norm; where they are all noise, the root of its share; so at most about the norm of
the average, and about that of any one sender's own gradient. Both are known: the former of the last rounds
(`peer.norm_history`), the latter from this peer's own numbers and, among three and more, as the senders' median; where
it has none, of fewer as the smaller one's, for both may have grown.

A tensor may come in many parts, with all of its gradient in one of them (the rows of frequent words), so norms are
those of whole tensors: no part of an honest gradient is larger than the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from peer.part_reducer import RefusedPart

MARGIN = 4.0  # above this round's reference nothing is unusual below so much of it, whatever earlier rounds were
MOST_MARGIN = 1000.0  # and everything above so much: a history that was spoilt opens no door
GROSS = 10.0  # times the limit: no accident any more; such a part counts as zeros
LEAST_SENDERS = 3  # that make a median


@dataclass(frozen=True)
class PartPlace:
    """Where a part belongs."""

    tensor: int  # in the order of the averaged tensors
    share: float  # of the tensor's values


@dataclass(frozen=True)
class Yardsticks:
    """What one reducer measures by in a round: norms of whole tensors, in their order."""

    sizes: Sequence[int]  # values
    own: Sequence[float]  # of this peer's own gradient; zero without samples
    usual: Sequence[float] | None  # the limit that earlier averages give; None: not known

    @property
    def has_history(self) -> bool:
        """Whether earlier rounds tell what is usual."""
        return self.usual is not None

    def limit(self, place: PartPlace, norms: Sequence[float]) -> float:
        """The largest contribution of one sender to this part; infinite as long as nothing is known.

        `norms` are those of the parts of all senders with a weight.
        """
        if not self.has_history and len(norms) < LEAST_SENDERS:
            return math.inf  # of two, with few labels, one may be hundreds of times the other: who is right?
        usual = self.usual[place.tensor] if self.usual is not None else 0.0
        typical = median(norms) / math.sqrt(place.share) if len(norms) >= LEAST_SENDERS else 0.0
        reference = max(self.own[place.tensor], typical)
        if reference > 0:
            return min(max(usual, MARGIN * reference), MOST_MARGIN * reference)
        least = min(norms, default=0.0) / math.sqrt(place.share)
        return max(usual, MARGIN * least) or self._like_others(self.sizes[place.tensor])

    def _like_others(self, size: int) -> float:
        """Of a tensor that was zero so far: as large, value for value, as any other."""
        norms = self.own if any(self.own) else self.usual or ()
        densest = max((norm / math.sqrt(values) for norm, values in zip(norms, self.sizes, strict=False)), default=0.0)
        return MARGIN * densest * math.sqrt(size) if densest > 0 else math.inf


def scale_to(limit: float, contribution: float, is_known: bool) -> float:
    """What a contribution of this norm is multiplied by: 1 within the limit, and 0 where it is grossly above.

    Unless earlier rounds have made the limit `is_known`, nothing counts as gross: of a small tensor (the two values of
    the sentence-order head, when one batch is balanced) honest gradients of one round may differ a hundredfold.
    """
    if contribution <= limit:
        return 1.0
    return limit / contribution if contribution <= GROSS * limit or not is_known else 0.0


def require_weight(weight: float, before: float | None) -> None:
    """Raise `RefusedPart` for a weight that is no number of samples, or not the one that came with the part before."""
    if not (math.isfinite(weight) and weight >= 0):
        raise RefusedPart(f"named the weight {weight:g}")
    if before is not None and weight != before:
        raise RefusedPart(f"named the weights {before:g} and {weight:g} in one round")
