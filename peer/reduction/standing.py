"""The standing of members by what their gradients show: as many samples as they name, and the others' direction.

A mean over n samples differs from the true gradient by noise of the energy sigma^2 / n (McCandlish et al. 2018, arXiv
1812.06162). A reducer that holds the parts of three members and more sees this energy without believing anybody: of
two gradients the signal is the same, and the noise is not. Who names twenty times its samples shows twenty times too
much noise for them. So a large claim needs gradients that bear it out, and a small one none. Noise of few dimensions
differs much by chance alone: in the head for sentence order, where all samples begin alike, it has hardly more than
one. So the noise of a round is judged by its dimensions, too (`noise_spread`).

A gradient turned round points away from those of the others. A single step's cosine says little, for honest gradients
are mostly noise; the mean of a few says more. Each member has one vote, however much it names.

Each reducer judges by its own parts alone, of every round that it reduced, for the rounds that follow.
Used by `peer.reduction.guard`.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

import torch

from peer.reduction.combine import WeightedPart

LEAST_MEMBERS = 3  # of fewer nobody can tell whose the noise is
LEAST_VALUES = 1024  # of the gradient; fewer show too little
MOST_VALUES = 1024  # of one part that are looked at
MOST_NEIGHBOURS = 16  # with whom a member is compared: pairs of 300 members would take seconds
REMEMBERED = 32  # rounds
FORGOTTEN_AFTER = 64  # rounds without this member
MOST_EXCESS = math.log(64.0)  # of one round: an honest mistake is forgotten within a few
LEAST_EXCESS = -math.log(4.0)  # likewise: one round in which a liar's noise is small by chance excuses few others
SPAN = 16  # rounds, at most, that show a member's noise
LEAST_TOLERANCE = 2.0  # times what is shown; all of more is taken to be false
SPREAD = 0.7  # of one round's excess among honest members, a standard deviation at least; more of few samples
SPREADS = 3.5  # of it that are tolerated
LEAST_ROUNDS_AGAINST = 3
SIGNIFICANT = 5.0  # standard errors below zero
LEAST_DEVIATION = 0.02  # of cosines
SCARCE = 8.0  # extra tolerance, divided by the degrees of freedom of the measured deviation
AGREEING = 1 / 16  # of its cosine's size: so far at least must most others agree among each other
GROWTH = 2.0  # times the samples that a member has shown lately: above that its share is bounded
SHOWING = 4  # rounds, at most, whose median is what it has shown: chance makes the noise of single ones small
LARGEST_SHARE = 1 / 4  # of all weight, of a member that has not shown that it computes so many samples
Term = tuple[torch.Tensor, torch.Tensor]  # members' rows, and their factors


@dataclass(frozen=True)
class Observation:
    """One member's gradient in one round, beside those of the others."""

    excess: float  # logarithm of the samples named over those that the noise shows
    spread: float  # of that among honest members, in this round: a standard deviation
    cosine: float  # to the mean of the others' directions
    samples: float = math.inf  # that the noise shows; 0 where chance has left none to measure


class RoundGram:
    """The products of all members' gradients with each other, summed over this reducer's parts of a round.

    Of a large part some values are looked at, at places that no sender can know.
    """

    def __init__(self, members: Sequence[str]) -> None:
        """`members`: of each sender, in the senders' order."""
        self._of_sender = members
        self.members = sorted(set(members))
        self._row = {member: row for row, member in enumerate(self.members)}
        self._products = torch.zeros(len(self.members), len(self.members), dtype=torch.float64)
        self._present: set[str] | None = None
        self._values = 0
        self._rng = random.SystemRandom()

    def add(self, contributions: Sequence[WeightedPart]) -> None:
        """Take in the parts of all senders with a weight; a member's devices count as one, by their weights."""
        stride = -(-contributions[0].part.numel() // MOST_VALUES)
        offset = self._rng.randrange(stride) if stride > 1 else 0
        weights: dict[str, float] = {}
        for given in contributions:
            member = self._of_sender[given.sender]
            weights[member] = weights.get(member, 0.0) + given.weight
        shares = torch.zeros(len(self.members), len(contributions), dtype=torch.float64)
        for column, given in enumerate(contributions):
            member = self._of_sender[given.sender]
            shares[self._row[member], column] = given.weight / weights[member]
        looked_at = torch.stack([given.part.flatten()[offset::stride] for given in contributions]).double()
        rows = shares @ looked_at
        products = rows @ rows.T
        usual = median(float(products[row, row]) for row in map(self._row.__getitem__, weights))
        if usual > 0:  # as a compromise: neither the largest tensor decides alone, nor has each the same voice
            self._products += products / math.sqrt(usual)
        self._values += contributions[0].part.numel()
        self._present = set(weights) if self._present is None else self._present & weights.keys()

    @staticmethod
    def may_judge(values: int, members: int) -> bool:
        """Whether a round with so many values and members can show anything."""
        return values >= LEAST_VALUES and members >= LEAST_MEMBERS

    def observe(self, weights: Mapping[str, float]) -> dict[str, Observation]:
        """Return what the round shows of each member; nothing where it cannot be judged. `weights`: as they name.

        A member that sends only zeros shows neither noise nor direction; the others are judged without it.
        """
        members = [
            member
            for member, energy in zip(self.members, self._products.diag().tolist(), strict=True)
            if member in (self._present or ()) and weights.get(member, 0) > 0 and energy > 0
        ]
        if not self.may_judge(self._values, len(members)):
            return {}
        rows = [self._row[member] for member in members]
        products = self._products[rows][:, rows]
        if not bool(torch.isfinite(products).all()):
            return {}
        energies = noise_energies(products)
        excess = _excess([weights[member] for member in members], energies)
        cosines = cosines_to_others(products)
        spread = noise_spread(noise_dimensions(products, [weights[member] for member in members]))
        return {
            member: Observation(more, spread, cosine, weights[member] / math.exp(more) if energy > 0 else 0.0)
            for member, more, energy, cosine in zip(members, excess, energies, cosines, strict=True)
        }


def noise_energies(products: torch.Tensor) -> list[float]:
    """Estimate the energy of each member's noise: (g_i - g_j) * (g_i - g_k) has no other mean, whoever j and k are.

    The median over pairs of others holds as long as most members are honest.
    """
    count = len(products)
    own = products.diag()
    energies = []
    for member in range(count):
        others = [(member + step) % count for step in range(1, count)]
        firsts, seconds = zip(*_pairs(others), strict=True)
        j, k = torch.tensor(firsts), torch.tensor(seconds)
        found = own[member] - products[member, j] - products[member, k] + products[j, k]
        energies.append(float(found.quantile(0.5)))
    return energies


def _pairs(others: Sequence[int]) -> Iterator[tuple[int, int]]:
    for place, first in enumerate(others):
        yield from ((first, second) for second in others[place + 1 : place + 1 + MOST_NEIGHBOURS])


def _excess(weights: Sequence[float], energies: Sequence[float]) -> list[float]:
    """Return the logarithm of each member's weight over that which its noise shows, as far as a round may say."""
    by_sample = [weight * energy for weight, energy in zip(weights, energies, strict=True)]
    usual = median(by_sample)
    if usual <= 0:  # most members have the very same gradient: there is no noise to measure by
        return [0.0] * len(weights)
    return [
        min(MOST_EXCESS, max(LEAST_EXCESS, math.log(found / usual))) if found > 0 else LEAST_EXCESS
        for found in by_sample
    ]


def noise_dimensions(products: torch.Tensor, weights: Sequence[float]) -> float:
    """Estimate of how many dimensions the members' noise is: 1 where all of it lies on one line.

    The differences of two pairs of members are independent noise, whose squared cosine is 1 / d on the average. Of
    three members, so are the difference of two and that of the third to their mean by weights.
    """
    count = len(products)
    i, j, k, last = ((torch.arange(count) + step) % count for step in range(4))
    one = torch.ones(count, dtype=products.dtype)
    if count == LEAST_MEMBERS:
        weight = torch.tensor(weights, dtype=products.dtype)
        share = weight[i] / (weight[i] + weight[j])
        found = _squared_cosines(products, ((i, one), (j, -one)), ((i, share), (j, 1 - share), (k, -one)))
        return 1 / max(1e-9, float(found.median()))
    pairs = (((i, j), (k, last)), ((i, k), (j, last)), ((i, last), (j, k)))
    squared = [_squared_cosines(products, ((a, one), (b, -one)), ((c, one), (d, -one))) for (a, b), (c, d) in pairs]
    return 1 / max(1e-9, float(torch.cat(squared).mean()))


def _squared_cosines(products: torch.Tensor, first: Sequence[Term], second: Sequence[Term]) -> torch.Tensor:
    """Return the squared cosines of two sums of gradients (members' rows and their factors), for many sums at once."""

    def product(left: Sequence[Term], right: Sequence[Term]) -> torch.Tensor:
        return torch.stack([x * y * products[a, b] for a, x in left for b, y in right]).sum(dim=0)

    sizes = product(first, first) * product(second, second)
    return torch.where(sizes > 0, product(first, second) ** 2 / sizes, 0.0).clamp(max=1.0)


def noise_spread(dimensions: float) -> float:
    """Return how much the logarithm of an honest member's noise differs by chance in a round, a standard deviation.

    The energy of noise of d dimensions is a chi-squared variable of d degrees, whose logarithm has the variance
    psi'(d / 2).
    """
    return max(SPREAD, math.sqrt(float(torch.special.polygamma(1, torch.tensor(dimensions / 2)))))


def cosines_to_others(products: torch.Tensor) -> list[float]:
    """Return the cosine of each member's gradient to the sum of the others', each of the length 1."""
    lengths = products.diag().sqrt()
    cosines = products / lengths[:, None] / lengths[None]
    to_others = cosines.sum(dim=1) - 1
    squared = cosines.sum() - 2 * cosines.sum(dim=1) + 1  # of the sum of the others
    return [
        float(to / math.sqrt(square)) if square > 0 else 0.0
        for to, square in zip(to_others.tolist(), squared.tolist(), strict=True)
    ]


def shown_excess(seen: Sequence[tuple[float, float]]) -> float:
    """Return how many times too much a member names, after these rounds, the last one last; 1 if within tolerance.

    `seen`: of each round, the excess and its spread among honest members.

    The last round alone must show far more than the last sixteen together. Who names too much counts with what is
    shown, so that nobody gains by staying just beyond what is tolerated.
    """
    found, total, variance = 1.0, 0.0, 0.0
    for rounds, (excess, spread) in enumerate(reversed(seen[-SPAN:]), 1):
        total, variance = total + excess, variance + spread**2
        if total / rounds > max(math.log(LEAST_TOLERANCE), SPREADS * math.sqrt(variance) / rounds):
            found = max(found, math.exp(total / rounds))
    return found


def pointing_away(cosines: Mapping[str, Sequence[float]], deviation: float) -> set[str]:
    """Return the members whose gradients point away from the others', beyond what chance would do.

    `cosines`: of each member, the last round's last; the last few rounds may show it, or all of them. `deviation`: of
    one round's cosine, a standard deviation. Where the others do not agree either, as all who have learnt their own
    samples, nobody points away; nor do half of the members.
    """
    away: set[str] = set()
    for rounds in range(LEAST_ROUNDS_AGAINST, REMEMBERED + 1):
        means = {member: fmean(found[-rounds:]) for member, found in cosines.items() if len(found) >= rounds}
        if len(means) < LEAST_MEMBERS:
            break
        usual = median(means.values())
        most = -SIGNIFICANT * deviation / math.sqrt(rounds)
        away |= {member for member, mean in means.items() if mean < most and usual >= AGREEING * -mean}
    return away if 2 * len(away) < len(cosines) else set()


def cosine_deviation(cosines: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of one member's cosine from round to round, infinite where it is not known.

    `cosines`: of each member, in its rounds. It is the median over members, which a minority of liars does not decide.
    Of three members in three rounds it comes out far too small by chance in one case of some hundred. So it is enlarged
    while few rounds have shown it, as Student's t distribution has wider tails.
    """
    known = [found for found in cosines if len(found) >= LEAST_ROUNDS_AGAINST]
    if not known:
        return math.inf
    degrees = sum(len(found) - 1 for found in known)
    return max(LEAST_DEVIATION, math.sqrt(median(map(variance, known)))) * (1 + SCARCE / degrees)


class Standings:
    """The memory of what the last rounds showed of each member, and who is held to point away from the others."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[Observation]] = {}
        self._missed: dict[str, int] = {}  # rounds since
        self._away: set[str] = set()

    def add(self, observed: Mapping[str, Observation]) -> list[str]:
        """Take in a round; return the members that point away from the others since this one."""
        if not observed:
            return []
        for member, observation in observed.items():
            self._seen.setdefault(member, deque(maxlen=REMEMBERED)).append(observation)
        self._missed = {member: 0 if member in observed else self._missed.get(member, 0) + 1 for member in self._seen}
        for member in [member for member, rounds in self._missed.items() if rounds > FORGOTTEN_AFTER]:
            del self._seen[member], self._missed[member]
        return self._judge_directions(observed)

    def knows(self, member: str, weight: float) -> bool:
        """Return whether the last few rounds have shown that this member computes half of these samples at least."""
        shown = [seen.samples for seen in self._seen.get(member, ())][-SHOWING:]
        return bool(shown) and weight <= GROWTH * median(shown)

    def factor(self, member: str, *, by_noise: bool) -> float:
        """Return the factor for this member's weight: 0 if it points away, below 1 if it names more than it shows."""
        if member in self._away:
            return 0.0
        if not by_noise:
            return 1.0
        return 1.0 / shown_excess([(seen.excess, seen.spread) for seen in self._seen.get(member, ())])

    def _judge_directions(self, observed: Mapping[str, Observation]) -> list[str]:
        """Hold those to point away who do; one who did is let in again when its mean cosine is above zero."""
        cosines = {member: [seen.cosine for seen in self._seen[member]] for member in observed}
        before = self._away
        staying = {
            member for member in before & self._seen.keys() if fmean(seen.cosine for seen in self._seen[member]) <= 0
        }
        self._away = staying | pointing_away(cosines, cosine_deviation(list(cosines.values())))
        for member in self._away - before:  # it is let in for what comes now, not for what it was
            self._seen[member] = deque(list(self._seen[member])[-SPAN:], maxlen=REMEMBERED)
        return sorted(self._away - before)


def largest_weight_share(members: int) -> float:
    """Return the share of all weight of a member that is not known: a quarter, or twice an equal share."""
    return min(1.0, max(LARGEST_SHARE, 2 / members))


def share_bounded(
    weights: Sequence[float], members: Sequence[str], bounded: Sequence[bool], most: float
) -> list[float]:
    """Return the weights, of which those of each bounded member together are at most the share `most` of all."""
    of_member: dict[str, float] = {}
    for weight, member in zip(weights, members, strict=True):
        of_member[member] = of_member.get(member, 0.0) + weight
    may_be_cut = {member for member, is_bounded in zip(members, bounded, strict=True) if is_bounded}
    cut: set[str] = set()
    rest = sum(weights)
    for member in sorted(may_be_cut, key=lambda name: -of_member[name]):
        is_within = of_member[member] <= most * rest / (1 - len(cut) * most)
        if is_within or of_member[member] >= rest or most * (len(cut) + 1) >= 1:
            break
        cut.add(member)
        rest -= of_member[member]
    each = most * rest / (1 - len(cut) * most)
    return [
        weight * each / of_member[member] if member in cut else weight
        for weight, member in zip(weights, members, strict=True)
    ]
