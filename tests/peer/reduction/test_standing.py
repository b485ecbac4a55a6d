"""Standing of members by their gradients: named samples against noise, and direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
import torch

from peer.reduction.combine import WeightedPart
from peer.reduction.standing import (
    FORGOTTEN_AFTER,
    LEAST_ROUNDS_AGAINST,
    LEAST_VALUES,
    REMEMBERED,
    SPREAD,
    Observation,
    RoundGram,
    Standings,
    cosines_to_others,
    largest_weight_share,
    noise_dimensions,
    share_bounded,
    shown_excess,
)

VALUES = 4096
SIGNAL = 0.3  # length of the true gradient beside one sample's noise, which has 1: honest cosines are near zero
Speeds = Mapping[str, float]
NONE: Speeds = MappingProxyType({})


class Swarm:
    """Members whose gradients are a common direction and the noise of their samples."""

    def __init__(self, speeds: Speeds, members: Mapping[str, str] | None = None, dimensions: int = VALUES) -> None:
        self.speeds, self.members = speeds, members or {name: name for name in speeds}
        self.rng = torch.Generator().manual_seed(0)
        self.dimensions = dimensions  # of the noise
        self.truth = torch.randn(VALUES, generator=self.rng) / math.sqrt(VALUES) * SIGNAL
        self.standings = Standings()

    def _drawn(self) -> torch.Tensor:
        """One sample's noise, in directions that stay the same."""
        drawn = torch.randn(self.dimensions, generator=self.rng) / math.sqrt(self.dimensions)
        return drawn.repeat_interleave(VALUES // self.dimensions) / math.sqrt(VALUES // self.dimensions)

    def take(self, claims: Speeds = NONE, scales: Speeds = NONE) -> list[str]:
        """Take a round, in which some name so many times their samples, or send so many times their gradient."""
        gram, named = RoundGram([self.members[name] for name in self.speeds]), dict[str, float]()
        parts, weights = [], []
        for name, samples in self.speeds.items():
            weights.append(samples * claims.get(name, 1.0))
            named[self.members[name]] = named.get(self.members[name], 0.0) + weights[-1]
            parts.append((self.truth + self._drawn() / math.sqrt(samples)) * scales.get(name, 1.0))
        for half in range(2):
            pieces = [part.chunk(2)[half] for part in parts]
            gram.add(
                [WeightedPart(i, piece, weight) for i, (piece, weight) in enumerate(zip(pieces, weights, strict=True))]
            )
        return self.standings.add(gram.observe(named))

    def factors(self) -> list[float]:
        return [self.standings.factor(member, by_noise=True) for member in sorted(set(self.members.values()))]


UNLIKE = {"a": 1, "b": 4, "c": 16, "d": 256}
ALIKE = {"a": 8, "b": 8, "c": 8, "d": 8}
APART = torch.eye(4).repeat_interleave(VALUES // 4, dim=1)[:3]
BETWEEN = [*APART, APART.mean(dim=0)]  # the last one's energy of noise comes out below zero


def test_honest_members_of_any_speed_count_whole() -> None:
    """Who has 256 times another's samples shows so much less noise."""
    swarm = Swarm(UNLIKE)
    for _ in range(REMEMBERED):
        assert swarm.take() == []
        assert swarm.factors() == [1.0] * 4


@pytest.mark.parametrize("dimensions", [1, 2, 4, 16])
@pytest.mark.parametrize("members", ["abc", "abcdefgh"])
def test_noise_of_few_dimensions_cuts_nobody(members: str, dimensions: int) -> None:
    """As of a head that says one thing of a sample: its energy differs by a hundred times between honest members."""
    speeds = dict.fromkeys(members, 8)
    swarm = Swarm(speeds, dimensions=dimensions)
    for _ in range(150):
        swarm.take()
        assert swarm.factors() == [1.0] * len(speeds)


def test_who_names_far_too_much_is_found_by_noise_of_one_dimension_too() -> None:
    """In more rounds."""
    swarm = Swarm(ALIKE, dimensions=1)
    found = []
    for _ in range(60):
        swarm.take({"d": 40.0})
        found.append(swarm.factors()[-1])
    assert min(found) < 1 / 20


@pytest.mark.parametrize("members", ["abc", "abcdefghijklmnop"])
@pytest.mark.parametrize("dimensions", [1, 4, VALUES])
def test_the_dimensions_of_noise_are_seen(dimensions: int, members: str) -> None:
    """By how alike the differences of members are; of many only that they are many."""
    swarm = Swarm(dict.fromkeys(members, 8), dimensions=dimensions)
    found = []
    for _ in range(30):
        rows = torch.stack([swarm.truth + swarm._drawn() for _ in swarm.speeds]).double()
        found.append(1 / noise_dimensions(rows @ rows.T, [8.0] * len(rows)))
    assert sum(found) / 30 == pytest.approx(1 / dimensions, rel=0.5, abs=0.01)


@pytest.mark.parametrize("liar", UNLIKE)
def test_who_names_twenty_times_its_samples_counts_with_those_that_it_has(liar: str) -> None:
    """After one round, within a factor of four: another's noise of 256 times its own blurs it. Nobody else is cut."""
    swarm = Swarm(UNLIKE)
    for _ in range(4):
        swarm.take({liar: 20.0})
        factors = dict(zip(sorted(UNLIKE), swarm.factors(), strict=True))
        assert 0.25 < 20 * factors.pop(liar) < 4
        assert set(factors.values()) == {1.0}


def test_a_sudden_claim_is_not_borne_out_by_earlier_rounds() -> None:
    """A device may grow to twice what it has shown at once; above that it is as little known as a new one."""
    swarm = Swarm(ALIKE)
    swarm.take({"b": 20.0})
    assert swarm.standings.knows("a", 12.0)
    assert not swarm.standings.knows("a", 24.0)
    assert not swarm.standings.knows("b", 160.0)
    assert not swarm.standings.knows("new", 1.0)


def test_noise_that_chance_made_small_bears_out_no_claim() -> None:
    """Of one round among four: before it, in it and after it."""
    standings = Standings()
    for shown, is_known in ((12.0, False), (12.0, False), (480.0, False), (12.0, False), (480.0, True)):
        standings.add({"liar": Observation(0.0, SPREAD, 1.0, shown)})
        assert standings.knows("liar", 240.0) is is_known


def test_a_small_excess_shows_with_the_rounds() -> None:
    """Of one round it may be chance."""
    swarm, factors = Swarm(ALIKE), []
    for _ in range(8):
        swarm.take({"a": 4.0})
        factors.append(swarm.factors()[0])
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(0.25, rel=0.2)


def test_one_mistake_is_forgotten() -> None:
    """A single gradient a hundred times too large costs a member a few rounds."""
    swarm = Swarm(ALIKE)
    swarm.take(scales={"a": 100.0})
    assert swarm.factors()[0] < 0.1
    for _ in range(8):
        swarm.take()
    assert swarm.factors() == [1.0] * 4


@pytest.mark.parametrize(
    ("speeds", "liars"),
    [
        (ALIKE, "a"),
        (dict.fromkeys("abcdef", 8.0), "ab"),
        ({"a": 4, "b": 8, "c": 16, "d": 32, "e": 64}, "c"),
    ],
)
@pytest.mark.parametrize("claim", [1.0, 20.0])
def test_who_sends_its_gradient_turned_round_loses_its_weight(speeds: Speeds, liars: str, claim: float) -> None:
    """However much it names; it is named once, and counts again after as many rounds of honest gradients."""
    swarm = Swarm(speeds)
    named = [
        member
        for _ in range(REMEMBERED)
        for member in swarm.take(dict.fromkeys(liars, claim), dict.fromkeys(liars, -1.0))
    ]
    assert sorted(named) == list(liars)
    honest = set(speeds) - set(liars)
    assert {member for member in sorted(speeds) if swarm.standings.factor(member, by_noise=False)} == honest
    for _ in range(2 * REMEMBERED):
        assert swarm.take() == []
    assert swarm.factors() == [1.0] * len(speeds)


@pytest.mark.parametrize("claims", [NONE, {"d": 20.0}])
def test_zeros_of_one_member_hide_no_other(claims: Speeds) -> None:
    """Beside a member that sends only zeros, direction and noise of the others are judged as ever."""
    swarm = Swarm(ALIKE | {"e": 8})
    zeros = {"e": 0.0}
    named = [found for _ in range(12) for found in swarm.take(claims, zeros if claims else zeros | {"b": -3.0})]
    assert named == ([] if claims else ["b"])
    factors = dict(zip("abcde", swarm.factors(), strict=True))
    assert {member for member, factor in factors.items() if factor < 1} == ({"d"} if claims else {"b"})
    assert not swarm.standings.knows("e", 1.0)


def test_who_turns_round_after_many_honest_rounds_is_found_as_soon() -> None:
    """What it was before does not cover it."""
    swarm = Swarm(ALIKE)
    for _ in range(REMEMBERED):
        swarm.take()
    named = [swarm.take(scales={"b": -1.0}) for _ in range(12)]
    assert [found for found in named if found] == [["b"]]


def test_half_of_the_members_are_never_held_to_point_away() -> None:
    """Of two against two nobody can tell who is right."""
    swarm = Swarm(ALIKE)
    for _ in range(REMEMBERED):
        assert swarm.take(scales={"a": -1.0, "b": -1.0}) == []
    assert all(swarm.factors())


def test_nobody_points_away_where_there_is_no_common_direction() -> None:
    """Where everything is learnt, gradients are noise, and chance accuses nobody."""
    swarm = Swarm(ALIKE)
    swarm.truth.zero_()
    for _ in range(20 * REMEMBERED):
        assert swarm.take() == []
        assert all(swarm.factors())


@pytest.mark.parametrize("members", ["abc", "abcd"])
def test_chance_accuses_nobody_where_few_rounds_have_shown_how_much_cosines_differ(members: str) -> None:
    """Of 500 swarms of honest newcomers, whose gradients are noise of sixty dimensions, none loses a member."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(500):
        standings = Standings()
        for _ in range(LEAST_ROUNDS_AGAINST + 1):
            drawn = torch.randn(len(members), 60, generator=rng, dtype=torch.float64)
            cosines = cosines_to_others(drawn @ drawn.T)
            seen = {member: Observation(0.0, SPREAD, cosine) for member, cosine in zip(members, cosines, strict=True)}
            assert standings.add(seen) == []


def test_nobody_points_away_where_all_pull_apart() -> None:
    """Members that have learnt all that they have in common still differ, each from all others."""
    swarm = Swarm(ALIKE)
    own = torch.stack([swarm._drawn() for _ in ALIKE])
    own -= own.mean(dim=0)
    for _ in range(REMEMBERED):
        gram = RoundGram(list(ALIKE))
        gram.add([WeightedPart(i, row + 0.1 * swarm._drawn(), 8.0) for i, row in enumerate(own)])
        assert swarm.standings.add(gram.observe(ALIKE)) == []
    assert all(swarm.factors())


def test_a_members_devices_have_one_voice() -> None:
    """Five devices of one liar are no majority against three members."""
    members = {name: "liar" if name in "defgh" else name for name in "abcdefgh"}
    swarm = Swarm(dict.fromkeys(members, 8.0), members)
    liars = dict.fromkeys("defgh", 20.0)
    named = [found for _ in range(REMEMBERED) for found in swarm.take(liars, dict.fromkeys("defgh", -1.0))]
    assert named == ["liar"]
    assert [swarm.standings.factor(name, by_noise=True) for name in ("a", "b", "c", "liar")] == [1.0, 1.0, 1.0, 0.0]


def test_two_members_are_not_judged() -> None:
    """Nor are parts of a few values."""
    swarm = Swarm({"a": 1, "b": 1})
    swarm.take({"a": 1000.0})
    assert not swarm.standings.knows("a", 1.0)
    assert not RoundGram.may_judge(LEAST_VALUES - 1, 3)
    assert RoundGram.may_judge(LEAST_VALUES, 3)


def test_equal_gradients_say_nothing_against_the_one_that_differs() -> None:
    """Without noise there is no measure."""
    gram, same = RoundGram(list("abcd")), torch.ones(VALUES)
    gram.add([WeightedPart(i, same, 1.0) for i in range(4)])
    assert {seen.excess for seen in gram.observe(ALIKE).values()} == {0.0}


@pytest.mark.parametrize("value", [0.0, 3e38])
def test_values_of_any_size_are_looked_at(value: float) -> None:
    """Zeros and the largest numbers break nothing."""
    swarm = Swarm(ALIKE)
    swarm.take(scales={"a": value})
    assert all(factor >= 0 for factor in swarm.factors())


def test_who_is_gone_is_forgotten() -> None:
    """The memory is bounded by those who come."""
    swarm = Swarm(ALIKE)
    swarm.take()
    swarm.speeds = dict.fromkeys("bcd", 8)
    for rounds in range(FORGOTTEN_AFTER + 1):
        assert swarm.standings.knows("a", 1.0), rounds
        swarm.take()
    assert not swarm.standings.knows("a", 1.0)


@pytest.mark.parametrize(
    ("excesses", "found"),
    [([], 1.0), ([2.4], 1.0), ([2.6], 13.5), ([0.6] * 32, 1.0), ([0.8] * 16, 2.2), ([-2.0] * 20 + [3.0], 20.1)],
)
def test_an_excess_counts_as_far_as_the_rounds_bear_it_out(excesses: Sequence[float], found: float) -> None:
    """The last one alone, or the last few together."""
    assert shown_excess([(excess, SPREAD) for excess in excesses]) == pytest.approx(found, rel=0.05)


def test_what_differs_much_by_chance_must_be_larger_or_last_longer() -> None:
    """Twenty times too much shows at once where the noise has many dimensions, and in some rounds where it has one."""
    wide = math.pi / math.sqrt(2)  # of one dimension
    assert shown_excess([(3.0, wide)] * 6) == 1.0
    assert shown_excess([(3.0, wide)] * 8) == pytest.approx(20.1, rel=0.05)


def test_a_round_without_measurable_noise_bears_out_nothing() -> None:
    """A liar's gradient that lies between the others' by chance lifts neither its bound nor the findings before."""
    swarm = Swarm(ALIKE)
    for _ in range(3):
        swarm.take({"d": 20.0})
    gram = RoundGram(sorted(ALIKE))
    gram.add([WeightedPart(i, part, 8.0) for i, part in enumerate(BETWEEN)])
    swarm.standings.add(gram.observe({"a": 8.0, "b": 8.0, "c": 8.0, "d": 160.0}))
    assert not swarm.standings.knows("d", 160.0)
    assert swarm.standings.factor("d", by_noise=True) < 1 / 2


@pytest.mark.parametrize(("members", "share"), [(2, 1.0), (3, 2 / 3), (4, 0.5), (10, 0.25), (300, 0.25)])
def test_the_share_of_a_new_member_is_that_of_a_reducer(members: int, share: float) -> None:
    """A quarter, or twice an equal share."""
    assert largest_weight_share(members) == share


@pytest.mark.parametrize(
    ("weights", "members", "new", "expected"),
    [
        ([20, 1, 1, 1], "abcd", "a", [3, 1, 1, 1]),  # a half
        ([20, 1, 1, 1], "abcd", "", [20, 1, 1, 1]),
        ([20, 20, 2, 2], "aabc", "a", [2, 2, 2, 2]),  # two devices of one member
        ([3, 1, 1, 1], "abcd", "abcd", [3, 1, 1, 1]),
        ([0, 0, 1], "abc", "abc", [0, 0, 1]),
    ],
)
def test_a_new_member_has_a_bounded_share(weights: list[float], members: str, new: str, expected: list[float]) -> None:
    """Those that are known to bring as much are not bounded, and small ones are not cut."""
    found = share_bounded(weights, list(members), [member in new for member in members], 0.5)
    assert found == pytest.approx(expected)


def test_two_new_members_are_bounded_together() -> None:
    """Each has the same share of all."""
    assert share_bounded([20.0, 40.0, 3.0, 3.0], list("abcd"), [True] * 4, 0.25) == pytest.approx([3.0] * 4)
    assert share_bounded([20.0, 40.0, 3.0, 3.0], list("abcd"), [True, True, False, False], 1 / 3) == pytest.approx(
        [6.0, 6.0, 3.0, 3.0]
    )
