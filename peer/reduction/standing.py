"""The standing of members, judged by the noise and the direction of their gradients.

A mean over n samples differs from the true gradient by noise of energy sigma^2 / n (McCandlish et
al. 2018, arXiv 1812.06162). A reducer with the parts of three or more members can measure this
energy without trusting anybody, because two gradients share the signal but not the noise. A member
that declares twenty times its samples shows twenty times too much noise. A claim of many samples
thus needs a gradient with little noise. Noise with few dimensions varies widely by chance: in the
sentence-order head, whose samples are alike at first, the noise has little more than one dimension.
`noise_spread` accounts for this.

A reversed gradient points away from the others. The cosine of one step is inconclusive, because
honest gradients are mostly noise, but the mean over several steps is not. All members' gradients
are first normalized to length 1, so each member counts once, whatever it declares.

A reducer judges members only by its own parts of earlier rounds. Used by `peer.reduction.guard`.
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

LEAST_MEMBERS = 3  # members required to attribute noise to one of them
LEAST_VALUES = 1024  # values of the gradient required for a conclusion
MOST_VALUES = 1024  # maximum number of values examined per part
MOST_NEIGHBOURS = 16  # members compared with each member, because all pairs of 300 would take seconds
REMEMBERED = 32  # number of remembered rounds
FORGOTTEN_AFTER = 64  # forget a member after it has missed this many rounds
MOST_EXCESS = math.log(64.0)  # upper limit per round, so that an honest mistake is soon forgotten
LEAST_EXCESS = -math.log(4.0)  # lower limit per round, so that accidentally small noise offsets few rounds
SPAN = 16  # maximum number of rounds over which noise is averaged
LEAST_TOLERANCE = 2.0  # ratio of claimed to shown samples above which only the shown ones count
SPREAD = 0.7  # smallest assumed standard deviation of an honest member's excess in a round
SPREADS = 3.5  # tolerated number of standard deviations
LEAST_ROUNDS_AGAINST = 3
SIGNIFICANT = 5.0  # standard errors by which a mean cosine must be below zero
LEAST_DEVIATION = 0.02  # smallest assumed standard deviation of cosines
SCARCE = 8.0  # extra tolerance for few observations, divided by the degrees of freedom
AGREEING = 1 / 16  # least median of the members' mean cosines, relative to a judged member's negated mean
GROWTH = 2.0  # ratio of claimed to recently shown samples above which a member's share is limited
SHOWING = 4  # rounds in the median of shown samples; a single round may have little noise by chance
LARGEST_SHARE = 1 / 4  # largest share of the total weight for a member with too few shown samples
Term = tuple[torch.Tensor, torch.Tensor]  # (row of each member, its factor in a weighted sum)


@dataclass(frozen=True)
class Observation:
    """One member's gradient in one round, compared with the others'."""

    excess: float  # log(declared samples / samples shown by the noise)
    spread: float  # standard deviation of the excess among honest members in this round
    cosine: float  # cosine to the mean of the others' directions
    samples: float = math.inf  # samples shown by the noise; 0: no noise measured


class RoundGram:
    """The inner products of all members' gradients, summed over this reducer's parts of a round.

    Large parts are sampled at positions unknown to the senders.
    """

    def __init__(self, members: Sequence[str]) -> None:
        """Set up the sums; `members`: each sender's member, in the order of senders."""
        self._of_sender = members
        self.members = sorted(set(members))
        self._row = {member: row for row, member in enumerate(self.members)}
        self._products = torch.zeros(len(self.members), len(self.members), dtype=torch.float64)
        self._present: set[str] | None = None
        self._values = 0
        self._rng = random.SystemRandom()

    def add(self, contributions: Sequence[WeightedPart]) -> None:
        """Add the parts of all senders with a weight; a member's devices are averaged by weight."""
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
        if usual > 0:  # a compromise between weighting by norm and equal weights for all tensors
            self._products += products / math.sqrt(usual)
        self._values += contributions[0].part.numel()
        self._present = set(weights) if self._present is None else self._present & weights.keys()

    @staticmethod
    def may_judge(values: int, members: int) -> bool:
        """Return whether a round with this number of values and members can be judged."""
        return values >= LEAST_VALUES and members >= LEAST_MEMBERS

    def observe(self, weights: Mapping[str, float]) -> dict[str, Observation]:
        """Return the round's observation of each member; empty if the round cannot be judged.

        `weights`: the declared weights. A member that sends only zeros shows neither noise nor
        direction, and is excluded from the others' observations.
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
    """Estimate the energy of each member's noise: the expectation of (g_i - g_j) * (g_i - g_k).

    The expectation does not depend on j and k. The median over pairs of other members is robust as
    long as most members are honest.
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
    """Return log(declared weight / weight shown by noise) per member, clamped to its bounds."""
    by_sample = [weight * energy for weight, energy in zip(weights, energies, strict=True)]
    usual = median(by_sample)
    if usual <= 0:  # most members have the same gradient, so there is no noise
        return [0.0] * len(weights)
    return [
        min(MOST_EXCESS, max(LEAST_EXCESS, math.log(found / usual))) if found > 0 else LEAST_EXCESS
        for found in by_sample
    ]


def noise_dimensions(products: torch.Tensor, weights: Sequence[float]) -> float:
    """Estimate the number of dimensions of the members' noise; 1 if all noise lies on a line.

    The differences of two pairs of members are independent noise, whose squared cosine is 1 / d on
    average. With three members, the two independent differences are between two members, and
    between the third member and the weighted mean of these two.
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
    """Return the squared cosines between pairs of weighted sums of gradients."""

    def product(left: Sequence[Term], right: Sequence[Term]) -> torch.Tensor:
        return torch.stack([x * y * products[a, b] for a, x in left for b, y in right]).sum(dim=0)

    sizes = product(first, first) * product(second, second)
    return torch.where(sizes > 0, product(first, second) ** 2 / sizes, 0.0).clamp(max=1.0)


def noise_spread(dimensions: float) -> float:
    """Return the standard deviation of log(noise energy) of an honest member in a round.

    The energy of noise in d dimensions is chi-squared with d degrees of freedom, and its logarithm
    has the variance psi'(d / 2).
    """
    return max(SPREAD, math.sqrt(float(torch.special.polygamma(1, torch.tensor(dimensions / 2)))))


def cosines_to_others(products: torch.Tensor) -> list[float]:
    """Return each gradient's cosine to the sum of the other gradients, all normalized to length 1."""
    lengths = products.diag().sqrt()
    cosines = products / lengths[:, None] / lengths[None]
    to_others = cosines.sum(dim=1) - 1
    squared = cosines.sum() - 2 * cosines.sum(dim=1) + 1  # squared length of the sum of the others
    return [
        float(to / math.sqrt(square)) if square > 0 else 0.0
        for to, square in zip(to_others.tolist(), squared.tolist(), strict=True)
    ]


def shown_excess(seen: Sequence[tuple[float, float]]) -> float:
    """Return the factor by which a member's claims exceed its samples in these rounds; 1 if tolerable.

    `seen`: (excess, spread among honest members) of each round, in order. The threshold for a
    single round is far higher than for the mean of sixteen. A member beyond the tolerance is
    counted only with the samples shown, so exceeding the tolerance slightly gains nothing.
    """
    found, total, variance = 1.0, 0.0, 0.0
    for rounds, (excess, spread) in enumerate(reversed(seen[-SPAN:]), 1):
        total, variance = total + excess, variance + spread**2
        if total / rounds > max(math.log(LEAST_TOLERANCE), SPREADS * math.sqrt(variance) / rounds):
            found = max(found, math.exp(total / rounds))
    return found


def pointing_away(cosines: Mapping[str, Sequence[float]], deviation: float) -> set[str]:
    """Return the members whose gradients point significantly away from the others'.

    `cosines`: each member's cosines in round order, tested over the last three or more rounds.
    `deviation`: standard deviation of one round's cosine. The result is empty if the others
    disagree (as after learning their own samples), or if it would include half of the members.
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
    """Return the standard deviation of one member's cosine over rounds; infinite if unknown.

    `cosines`: each member's cosines. The result is the median over members, which a dishonest
    minority does not control. With three members and three rounds, the estimate is far too small by
    chance in about one case in a hundred. While there are few rounds, it is therefore enlarged,
    like the tails of Student's t distribution.
    """
    known = [found for found in cosines if len(found) >= LEAST_ROUNDS_AGAINST]
    if not known:
        return math.inf
    degrees = sum(len(found) - 1 for found in known)
    return max(LEAST_DEVIATION, math.sqrt(median(map(variance, known)))) * (1 + SCARCE / degrees)


class Standings:
    """Each member's recent observations, and the members whose gradients point away."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[Observation]] = {}
        self._missed: dict[str, int] = {}  # member -> rounds since its last observation
        self._away: set[str] = set()

    def add(self, observed: Mapping[str, Observation]) -> list[str]:
        """Record a round's observations; return the members newly found to point away from the others."""
        if not observed:
            return []
        for member, observation in observed.items():
            self._seen.setdefault(member, deque(maxlen=REMEMBERED)).append(observation)
        self._missed = {member: 0 if member in observed else self._missed.get(member, 0) + 1 for member in self._seen}
        for member in [member for member, rounds in self._missed.items() if rounds > FORGOTTEN_AFTER]:
            del self._seen[member], self._missed[member]
        return self._judge_directions(observed)

    def knows(self, member: str, weight: float) -> bool:
        """Return whether the samples shown in recent rounds are at least half of this weight."""
        shown = [seen.samples for seen in self._seen.get(member, ())][-SHOWING:]
        return bool(shown) and weight <= GROWTH * median(shown)

    def factor(self, member: str, *, by_noise: bool) -> float:
        """Return a member's weight factor: 0 if it points away, below 1 if it claims more than it shows."""
        if member in self._away:
            return 0.0
        if not by_noise:
            return 1.0
        return 1.0 / shown_excess([(seen.excess, seen.spread) for seen in self._seen.get(member, ())])

    def _judge_directions(self, observed: Mapping[str, Observation]) -> list[str]:
        """Return members newly found to point away; readmit those with a positive mean cosine."""
        cosines = {member: [seen.cosine for seen in self._seen[member]] for member in observed}
        before = self._away
        staying = {
            member for member in before & self._seen.keys() if fmean(seen.cosine for seen in self._seen[member]) <= 0
        }
        self._away = staying | pointing_away(cosines, cosine_deviation(list(cosines.values())))
        for member in self._away - before:  # so that only recent rounds decide on readmission
            self._seen[member] = deque(list(self._seen[member])[-SPAN:], maxlen=REMEMBERED)
        return sorted(self._away - before)


def largest_weight_share(members: int) -> float:
    """Return an unknown member's largest share: a quarter or, if more, twice an equal share."""
    return min(1.0, max(LARGEST_SHARE, 2 / members))


def share_bounded(
    weights: Sequence[float], members: Sequence[str], bounded: Sequence[bool], most: float
) -> list[float]:
    """Return the weights, with each bounded member's total reduced to at most the share `most`."""
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
