"""Validation of senders' parts before this peer averages them, and of reducers' averages.

Parts are subject to weight caps, norm limits and bans. A weight is accepted to the extent that the
gradients of recent rounds support it (`peer.reduction.standing`); a new sender's share is limited.
A part that is far too large is ignored, as is its sender in the following rounds.

A peer's node has one guard, which remembers earlier rounds. Each round (with
PowerSGD, each half) has a `RoundGuard`. `peer.reduction.screening` makes the decisions.

A reducer could return values so large that they dominate the step. All peers of the last rounds
compute the same limits from its averages (`AverageScreen`). The limits are wide, and rise with the
round's own gradients, which grow in a diverging run (`too_large`). Excessive averages make one
round fail, and the reducer is then accused (`peer.reduction.findings`) and excluded.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from hivemind.compression import CompressionInfo

from peer.config.training import Averaging
from peer.reduction.combine import ReducedPart, WeightedPart, centered_clipping, counted_of, reduced_mean, weighted_mean
from peer.reduction.findings import Finding
from peer.reduction.screening import (
    GROSS,
    LEAST_ROUNDS,
    LEAST_SENDERS,
    REMEMBERED_ROUNDS,
    NormHistory,
    PartPlace,
    Yardsticks,
    scale_to,
)
from peer.reduction.standing import RoundGram, Standings, largest_weight_share, share_bounded

logger = logging.getLogger(__name__)
JUMP = 1000.0  # multiple of the largest recent norm up to which an average is accepted
LEAST_ROWS = 16  # rows needed to expect a nonzero value from an honest sender
UNHEARD_ROUNDS = 4  # rounds for which a sender is ignored after most of its values were too large


@dataclass(frozen=True)
class WeightCaps:
    """The largest accepted weights in samples, which the trainer derives from the run."""

    by_peer: Mapping[str, float] = field(default_factory=dict)  # peer ID -> cap
    newcomers: float = math.inf  # the cap of every other device

    def of(self, peer_id: str) -> float:
        """Return the largest accepted weight of this device, in samples."""
        return self.by_peer.get(peer_id, self.newcomers)


@dataclass(frozen=True)
class Past:
    """Data of earlier rounds: norms of averages, the last averages, and senders' standings."""

    history: NormHistory = field(default_factory=NormHistory)
    standings: Standings = field(default_factory=Standings)
    unheard: dict[str, int] = field(default_factory=dict)  # ignored peer ID -> remaining rounds
    averages: list[torch.Tensor] = field(default_factory=list)  # last averages, if needed for clipping


class ReductionGuard:
    """A peer's guard."""

    def __init__(
        self,
        note: Callable[[Finding], object] = lambda _: None,
        averaging: Averaging | None = None,
    ) -> None:
        """Set up a guard; `note` receives what it finds of other peers."""
        self.caps = WeightCaps()  # no limits before the trainer's first caps
        self._note = note
        self._averaging = averaging or Averaging()
        self._past: dict[bytes, Past] = {}
        self._group, self._refused = b"", set[str]()

    @property
    def makes_means(self) -> bool:
        """Whether averages are plain means, which any peer with the parts can recompute."""
        return self._averaging.aggregation == "mean"

    def begin(self, group_id: bytes, half: bytes, members: Mapping[str, str] | None = None) -> RoundGuard:
        """Return the guard for a round or half; `members`: peer ID -> member that owns the device."""
        if group_id != self._group:
            self._group, self._refused = group_id, set()
        past = self._past.setdefault(half, Past())
        return RoundGuard(self.caps, self._note, self._averaging, past, self._refused, members or {})

    def accepted(self, half: bytes, averages: Sequence[torch.Tensor]) -> None:
        """Store the norms of a round's averages, and the averages themselves if clipping needs them."""
        past = self._past.setdefault(half, Past())
        past.history.add([norm_of(average) for average in averages])
        if self._averaging.aggregation == "centered_clipping":
            past.averages[:] = [average.clone() for average in averages]

    def forget_norms(self) -> None:
        """Forget earlier averages when the averaged tensors change; the senders' standings remain."""
        for half, past in self._past.items():
            self._past[half] = replace(past, history=NormHistory(), averages=[])


class RoundGuard:
    """One reducer's checks in one round, or in one half of a round with PowerSGD."""

    def __init__(
        self,
        caps: WeightCaps,
        note: Callable[[Finding], object],
        averaging: Averaging,
        past: Past,
        refused: set[str],
        members: Mapping[str, str],
    ) -> None:
        self._caps, self._note, self._averaging, self._past = caps, note, averaging, past
        self.refused = refused  # peer IDs that are banned from the group's rounds
        self._member_of_peer = members
        self._believed: dict[int, float] = {}  # sender -> its declared weight, within its cap
        self._counted: dict[int, float] = {}  # sender -> the accepted portion of that weight
        self._smaller: Counter[int] = Counter()  # sender -> number of values that were scaled down or excluded
        self._gross: Counter[int] = Counter()  # sender -> number of values excluded as far too large
        self._nonzero: Counter[int] = Counter()  # sender -> number of nonzero values

    def set_up(
        self,
        senders: Sequence[str],
        tensors: Sequence[torch.Tensor],
        parts: Sequence[tuple[torch.Tensor, CompressionInfo]],
        weight: float,
    ) -> None:
        """Set the senders, and this peer's gradients, parts and weight, before any part arrives."""
        self._senders, self._parts = senders, parts
        self._members = [self._member_of_peer.get(peer_id, peer_id) for peer_id in senders]
        self._values = sum(len(part) for part, _ in parts)
        self._gram = RoundGram(self._members)
        self._places = [PartPlace(info.key, len(part) / max(1, tensors[info.key].numel())) for part, info in parts]
        self._rows = sum(place.share * tensors[place.tensor].shape[:1].numel() for place in self._places)
        limits = self._past.history.limits()
        own = [norm_of(tensor) if weight > 0 and parts else 0.0 for tensor in tensors]
        self._yardsticks = Yardsticks([tensor.numel() for tensor in tensors], own, limits)

    def believed(self, sender: int, weight: float) -> float:
        """Return the declared weight, limited to the sender's cap."""
        return min(weight, self._caps.of(self._senders[sender]))

    def counted(self, sender: int) -> float:
        """Return a sender's weight in this round's averages."""
        return self._counted.get(sender, 0.0)

    def credited(self, sender: int) -> float:
        """Return a sender's credited weight; 0 if all values are zero, or most are far too large."""
        return 0.0 if self._is_gross(sender) or self._brought_nothing(sender) else self.counted(sender)

    def refuse(self, sender: int, reason: str) -> None:
        """Ban a sender for its parts, and report it to the trainer's process, once in a round."""
        if self._senders[sender] not in self.refused:
            self.refused.add(self._senders[sender])
            self._note(Finding(self._senders[sender], "parts", reason))

    def combine(self, part_index: int, contributions: Sequence[WeightedPart]) -> ReducedPart:
        """Average one part with the accepted weights; scale down contributions that are too large."""
        weighing = [given for given in contributions if given.weight > 0]
        if not weighing:
            return reduced_mean(part_index, contributions)
        if not self._counted:
            self._weigh(weighing)
        self._gram.add(weighing)
        for given in weighing:
            self._nonzero[given.sender] += int(given.part.count_nonzero())
        sizes = {given.sender: norm_of(given.part) for given in weighing}
        heard = [replace(given, weight=counted) for given in weighing if (counted := self.counted(given.sender)) > 0]
        if not heard:  # all accepted senders were banned, so the round yields no step
            return ReducedPart(torch.zeros_like(weighing[0].part), {})
        place, norms = self._places[part_index], [sizes[given.sender] for given in heard]
        limit = self._yardsticks.limit(place, norms)
        gross = self._yardsticks.gross(place, limit)
        self._look_for_large(weighing, sizes, limit, gross)
        total = sum(given.weight for given in heard)
        brought = [given.weight / total * norm for given, norm in zip(heard, norms, strict=True)]
        bounded = [
            replace(given, part=given.part * scale) if (scale := scale_to(limit, contribution)) != 1 else given
            for given, contribution in zip(heard, brought, strict=True)
            if contribution <= gross
        ]
        if not bounded:  # all contributions are too large: return zeros
            bounded = [replace(given, part=torch.zeros_like(given.part)) for given in heard]
        return ReducedPart(self._aggregated(part_index, place, bounded), counted_of(bounded))

    def _weigh(self, weighing: Sequence[WeightedPart]) -> None:
        """Determine this round's accepted weights, once all senders have declared their weights."""
        senders, standings = [given.sender for given in weighing], self._past.standings
        self._believed = {given.sender: given.weight for given in weighing}
        members = [self._members[sender] for sender in senders]
        by_noise = self._judges_noise and self._gram.may_judge(self._values, len(set(members)))
        weights = [
            0.0
            if self._senders[given.sender] in self._past.unheard
            else given.weight * standings.factor(member, by_noise=by_noise)
            for given, member in zip(weighing, members, strict=True)
        ]
        if not any(weights):  # otherwise no sender would remain
            weights = [given.weight for given in weighing]
        if by_noise:
            named = self._believed_by_member()
            new = [not standings.knows(member, named[member]) for member in members]
            heard = {member for member, weight in zip(members, weights, strict=True) if weight > 0}
            weights = share_bounded(weights, members, new, largest_weight_share(len(heard)))
        self._counted = dict(zip(senders, weights, strict=True))

    def _look_for_large(
        self, weighing: Sequence[WeightedPart], sizes: Mapping[int, float], limit: float, gross: float
    ) -> None:
        """Count each sender's excessive values, even if the sender is ignored in this round.

        A sender is reported once most of its values in this reducer's parts are far too large, but
        not before the history has enough rounds: honest peers' first gradients differ by as much.
        Single tensors of an honest gradient may be far too large: once most samples are learnt, one
        mistake makes the gradients of pooler and sentence-order head a hundred times larger.
        """
        total = sum(given.weight for given in weighing)
        for given in weighing:
            contribution = given.weight / total * sizes[given.sender]
            if contribution > limit:
                self._smaller[given.sender] += given.part.numel()
            if contribution > gross:
                was_gross = self._is_gross(given.sender)
                self._gross[given.sender] += given.part.numel()
                if not was_gross and self._is_gross(given.sender) and self._past.history.limits() is not None:
                    times = GROSS * contribution / gross if gross > 0 else math.inf
                    detail = f"sent a gradient {times:.3g} times the largest that could be an honest one"
                    self._note(Finding(self._senders[given.sender], "gradient", detail))

    def _believed_by_member(self) -> dict[str, float]:
        weights: dict[str, float] = {}
        for sender, weight in self._believed.items():
            weights[self._members[sender]] = weights.get(self._members[sender], 0.0) + weight
        return weights

    def _is_gross(self, sender: int) -> bool:
        return 2 * self._gross[sender] > self._values

    def _brought_nothing(self, sender: int) -> bool:
        """Return whether a sender's values are all zero although an honest gradient's would not be.

        An honest gradient may be zero in the rows of rare tokens or in an untrained tensor, and
        this peer may reduce only such values. Other senders, especially those with few samples,
        then have many zeros, too. The result is therefore True only if this peer reduces many
        values, most senders have nonzero values, and most values of each of these are nonzero. The
        fewer samples this sender declares relative to the smallest other sender, the more rows are
        required. Progress over local steps is not judged: before the first local step, there is none.
        """
        others = [other for other in self._believed if self._nonzero[other]]
        is_judged = self._judges_noise and self._gram.may_judge(self._values, len(self._gram.members))
        if sender not in self._believed or sender in others or not is_judged or 2 * len(others) <= len(self._believed):
            return False
        least = min(self._believed[other] for other in others)
        are_reached = self._rows * min(self._believed[sender], least) >= LEAST_ROWS * least
        return are_reached and all(2 * self._nonzero[other] > self._values for other in others)

    @property
    def _judges_noise(self) -> bool:
        """Whether the noise of a part depends on its number of samples, unlike that of progress over local steps."""
        return self._averaging.local_steps == 1

    def _aggregated(self, part_index: int, place: PartPlace, bounded: Sequence[WeightedPart]) -> torch.Tensor:
        if self._averaging.aggregation == "mean":
            return weighted_mean(part_index, bounded)
        medians = self._past.history.medians()
        usual = medians[place.tensor] * place.share**0.5 if medians is not None else 0.0
        return centered_clipping(
            bounded,
            self._last_average(part_index),
            usual,
            self._averaging.clipping_radius,
            self._averaging.clipping_iterations,
        )

    def _last_average(self, part_index: int) -> torch.Tensor | None:
        if not self._past.averages:
            return None
        part, info = self._parts[part_index]
        begin: int = info.part_index * (info.part_size or 0)
        last: torch.Tensor = self._past.averages[info.key]
        return last.view(-1)[begin : begin + len(part)]

    def ended(self) -> None:
        """Store the round's observations of senders for later rounds, and log reduced weights."""
        unheard = self._past.unheard
        for peer_id in self._senders:
            if (rounds := unheard.pop(peer_id, 0)) > 1:
                unheard[peer_id] = rounds - 1
        for sender, values in self._smaller.items():
            are_many = 2 * values > self._values and len(self._believed) >= LEAST_SENDERS
            if are_many or self._is_gross(sender):
                unheard[self._senders[sender]] = UNHEARD_ROUNDS
            if values:
                logger.info("%d values of %s were larger than could be", values, self._senders[sender])
        for sender, weight in self._believed.items():
            if self._brought_nothing(sender):
                logger.info(
                    "%s sent nothing but zeros: of its weight %g nothing is credited", self._senders[sender], weight
                )
            if self.counted(sender) < weight:
                counted = self.counted(sender)
                logger.info("of the weight %g of %s %g counted", weight, self._senders[sender], counted)
        self._judge_members()

    def _judge_members(self) -> None:
        for member in self._past.standings.add(self._gram.observe(self._believed_by_member())):
            devices = [self._senders[sender] for sender in self._believed if self._members[sender] == member]
            logger.warning("%s sends gradients that point away from those of most others", ", ".join(devices))


def norm_of(tensor: torch.Tensor) -> float:
    """Return the L2 norm in float64, because squares of float32 may overflow."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def too_large(sizes: Mapping[str, float], own_size: float, trusted: str) -> dict[str, float]:
    """Return the reducers whose averages are too large for their round, each with its excess.

    `sizes`: each reducer's largest average in multiples of the limit from earlier rounds;
    `own_size`: the same for this peer's gradient, 0 without samples; `trusted`: this peer's own ID.
    The limit grows with this peer's gradient and the other reducers' averages. Without any of them,
    the round has no reference, and earlier rounds alone do not suffice for an accusation.
    """
    found = {}
    for reducer, size in sizes.items():
        others = [theirs for other, theirs in sizes.items() if other != reducer] + [own_size]
        times = size / max(1.0, JUMP * max(filter(None, others), default=math.inf))
        if times > 1 and reducer != trusted:
            found[reducer] = times
    return found


class AverageScreen:
    """The L2 norms of each tensor's averages in recent rounds, separately per half of a round."""

    def __init__(self) -> None:
        self._norms: dict[bytes, deque[tuple[float, ...]]] = {}
        self._largest = 0.0  # largest norm of any tensor before `forget_tensors`; 0: unknown

    def accepted(self, half: bytes, averages: Sequence[torch.Tensor]) -> None:
        """Store the norms of a round's averages."""
        norms = self._norms.setdefault(half, deque(maxlen=REMEMBERED_ROUNDS))
        norms.append(tuple(norm_of(average) for average in averages))

    def forget_tensors(self) -> None:
        """Forget the norms per tensor when the averaged tensors change, but keep the largest norm.

        The largest norm still serves as a bound: projecting a matrix onto orthonormal directions
        never increases its norm, and rarely reduces it a thousandfold.
        """
        known = [max(norms) for rounds in self._norms.values() if len(rounds) >= LEAST_ROUNDS for norms in rounds]
        self._largest = max(known, default=self._largest)
        self._norms.clear()

    def limits(self, half: bytes, tensors: int) -> list[float]:
        """Return, for each tensor, the largest allowed norm of any part of its average."""
        rounds = self._norms.get(half, ())
        if len(rounds) < LEAST_ROUNDS:
            return [JUMP * self._largest or math.inf] * tensors
        return [JUMP * max(norms) or math.inf for norms in zip(*rounds, strict=True)]
