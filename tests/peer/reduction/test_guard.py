"""What stands between senders and an average, over several rounds."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer

from peer.config.training import Averaging
from peer.reduction.combine import WeightedPart
from peer.reduction.guard import (
    JUMP,
    UNHEARD_ROUNDS,
    AverageScreen,
    ReductionGuard,
    RoundGuard,
    WeightCaps,
    norm_of,
    too_large,
)
from peer.reduction.screening import LEAST_ROUNDS, REMEMBERED_ROUNDS
from tests.support.notes import Notes

SHAPES = [(6, 4), (8,)]
NAMES = ["a", "b", "c"]
HALF = b""


def gradients(seed: int, size: float = 1.0) -> list[torch.Tensor]:
    """One sender's, or an average."""
    generator = torch.Generator().manual_seed(seed)
    return [size * torch.randn(shape, generator=generator) for shape in SHAPES]


def begun(guard: ReductionGuard, own: list[torch.Tensor], weight: float, group: bytes = b"group") -> RoundGuard:
    """A round in which this peer reduces everything, in parts of ten values and less."""
    container = TensorPartContainer(own, [1.0], part_size_bytes=40)
    of_round = guard.begin(group, b"")
    of_round.set_up(NAMES, own, list(container._input_parts_by_peer[0]), weight)
    return of_round


def parts(of_tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """As a sender sends them: the matrix in three, the vector whole."""
    return [*of_tensors[0].view(-1).split(10), of_tensors[1]]


def reduced(of_round: RoundGuard, senders: list[list[torch.Tensor]], weights: list[float]) -> list[torch.Tensor]:
    """All parts' averages."""
    by_part = zip(*map(parts, senders), strict=True)
    return [
        of_round.combine(
            index,
            [WeightedPart(i, part, weight) for i, (part, weight) in enumerate(zip(brought, weights, strict=True))],
        ).average
        for index, brought in enumerate(by_part)
    ]


def test_honest_parts_are_averaged_as_they_are() -> None:
    """By weight, bit by bit."""
    senders = [gradients(seed) for seed in range(3)]
    averages = reduced(begun(ReductionGuard(Notes()), senders[0], 2.0), senders, [2.0, 1.0, 1.0])
    for average, *brought in zip(averages, *map(parts, senders), strict=True):
        total = torch.zeros_like(brought[0])
        for part, weight in zip(brought, [2.0, 1.0, 1.0], strict=True):
            total.add_(part, alpha=weight)
        assert torch.equal(average, total / 4.0)


@pytest.mark.parametrize("size", [1e3, -1e3, 1e38])
@pytest.mark.parametrize("own_weight", [0.0, 1.0])
def test_an_enormous_gradient_is_named_and_does_not_count(size: float, own_weight: float) -> None:
    """Nor does its weight: at trainers, and at a keeper, once there is a history."""
    guard, senders = ReductionGuard(Notes()), [gradients(0), gradients(1), gradients(2, size)]
    for seed in range(LEAST_ROUNDS):
        guard.accepted(b"", gradients(seed))
    of_round = begun(guard, senders[0], own_weight)
    averages = reduced(of_round, senders, [1.0] * 3)
    assert [of_round.credited(sender) for sender in range(3)] == [1.0, 1.0, 0.0]
    expected = [(first + second) / 2 for first, second in zip(parts(senders[0]), parts(senders[1]), strict=True)]
    for average, without in zip(averages, expected, strict=True):
        assert torch.allclose(average, without)
    assert {(found.peer_id, found.kind) for found in guard._note} == {("c", "gradient")}


def test_who_sends_one_enormous_tensor_of_several_is_not_named() -> None:
    """An honest head's gradient may jump a thousandfold, where most samples are learnt; that tensor does not count."""
    guard, senders = ReductionGuard(Notes()), [gradients(0), gradients(1), gradients(2)]
    for seed in range(LEAST_ROUNDS):
        guard.accepted(b"", gradients(seed))
    senders[2][1] *= 1e3
    of_round = begun(guard, senders[0], 1.0)
    averages = reduced(of_round, senders, [1.0] * 3)
    assert torch.allclose(averages[0], sum(parts(of)[0] for of in senders) / 3)
    assert torch.allclose(averages[-1], (senders[0][1] + senders[1][1]) / 2)
    assert guard._note == []
    assert of_round.credited(2) == 1.0


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_at_first_an_enormous_gradient_does_not_count(size: float) -> None:
    """And nobody is named: the first gradients of a small tensor may differ as much among honest peers."""
    guard, senders = ReductionGuard(Notes()), [gradients(0), gradients(1), gradients(2, size)]
    of_round = begun(guard, senders[0], 1.0)
    averages = reduced(of_round, senders, [1.0] * 3)
    assert torch.allclose(averages[0], sum(parts(of)[0] for of in senders[:2]) / 2)
    assert guard._note == []
    assert of_round.credited(2) == 0.0


def test_who_was_too_large_does_not_count_in_the_rounds_that_follow() -> None:
    """Its parts are looked at all the same: after some rounds of honest ones it counts again."""
    guard, honest = ReductionGuard(Notes()), [gradients(seed) for seed in range(3)]
    of_round = begun(guard, honest[0], 1.0)
    reduced(of_round, [*honest[:2], gradients(2, 40.0)], [1.0] * 3)  # it is made smaller
    of_round.ended()
    counted = []
    for _ in range(UNHEARD_ROUNDS + 1):
        of_round = begun(guard, honest[0], 1.0)
        averages = reduced(of_round, honest, [1.0] * 3)
        of_round.ended()
        counted.append(of_round.counted(2))
    assert counted == [0.0] * UNHEARD_ROUNDS + [1.0]
    assert torch.allclose(averages[0], sum(parts(of)[0] for of in honest) / 3)


def test_nobody_is_left_out_where_nobody_would_be_left() -> None:
    """If all gradients of a round are too large for what was usual, they count as zeros, and the round ends."""
    guard, senders = ReductionGuard(Notes()), [gradients(0, 1e6), gradients(1, 1e6)]
    for seed in range(LEAST_ROUNDS):
        guard.accepted(b"", gradients(seed, 1e-6))
    averages = reduced(begun(guard, gradients(0, 1e-6), 1.0), senders, [1.0] * 2)
    assert all(torch.equal(average, torch.zeros_like(average)) for average in averages)


def test_a_keeper_of_two_trainers_measures_by_its_history() -> None:
    """Before that it takes what comes, for it cannot tell which of the two is right."""
    guard, large = ReductionGuard(Notes()), gradients(2, 1e3)
    first = reduced(begun(guard, gradients(0), 0.0), [gradients(0), large], [1.0, 1.0])
    assert norm_of(first[-1]) > 100
    for seed in range(LEAST_ROUNDS):
        guard.accepted(b"", gradients(seed))
    later = reduced(begun(guard, gradients(0), 0.0), [gradients(0), large], [1.0, 1.0])
    assert norm_of(later[-1]) < 4
    assert [found.peer_id for found in guard._note] == ["b"]


def taken(
    guard: ReductionGuard,
    weights: list[float],
    scales: list[float],
    members: dict[str, str],
    rng: torch.Generator,
) -> list[float]:
    """What counts of each sender in a round of gradients that are mostly noise, each as its true samples are: 8."""
    shape, truth = (2000,), torch.full((2000,), 0.3)
    brought = [scale * (truth + torch.randn(shape, generator=rng)) for scale in scales]
    container = TensorPartContainer([torch.zeros(shape)], [1.0], part_size_bytes=4000)
    of_round = guard.begin(b"group", HALF, members)
    names = [f"{number}" for number in range(len(weights))]
    of_round.set_up(names, [torch.zeros(shape)], list(container._input_parts_by_peer[0]), 0.0)
    for index, same in enumerate(zip(*(of.split(1000) for of in brought), strict=True)):
        given = [WeightedPart(sender, part, weights[sender]) for sender, part in enumerate(same)]
        answer = of_round.combine(index, given)
        assert answer.weight == pytest.approx(sum(map(of_round.counted, range(len(weights)))))
    of_round.ended()
    return [of_round.counted(sender) for sender in range(len(weights))]


@pytest.mark.parametrize("aggregation", ["mean", "centered_clipping"])
def test_a_claim_counts_as_far_as_gradients_bear_it_out(aggregation: Literal["mean", "centered_clipping"]) -> None:
    """In the first round it has no more than half of all weight; from the second on what its noise shows."""
    guard, rng = ReductionGuard(Notes(), averaging=Averaging(aggregation=aggregation)), torch.Generator().manual_seed(0)
    weights, alike = [160.0, 8.0, 8.0, 8.0], [1.0] * 4
    assert taken(guard, weights, alike, {}, rng) == pytest.approx([24.0, 8.0, 8.0, 8.0])
    later = taken(guard, weights, alike, {}, rng)
    assert later == pytest.approx([8.0] * 4, rel=0.3)


def test_who_points_away_does_not_count() -> None:
    """Its devices together, and nobody is named: no proof of it could be shown."""
    guard, members = ReductionGuard(Notes()), {"0": "liar", "1": "liar"}
    rng = torch.Generator().manual_seed(0)
    for _ in range(8):
        last = taken(guard, [8.0] * 5, [-1.0, -1.0, 1.0, 1.0, 1.0], members, rng)
    assert last == [0.0, 0.0, 8.0, 8.0, 8.0]
    assert guard._note == []


def credited(brought: list[torch.Tensor], weights: list[float], averaging: Averaging | None = None) -> list[float]:
    """The credit of each sender after a round of these gradients."""
    guard, size = ReductionGuard(Notes(), averaging=averaging), len(brought[0])
    of_round = guard.begin(b"group", HALF)
    container = TensorPartContainer([torch.zeros(size)], [1.0], part_size_bytes=2 * size)
    of_round.set_up(list(map(str, range(len(weights)))), [torch.zeros(size)], [*container._input_parts_by_peer[0]], 0.0)
    for index, same in enumerate(zip(*(gradient.chunk(2) for gradient in brought), strict=True)):
        of_round.combine(index, [WeightedPart(i, part, weights[i]) for i, part in enumerate(same)])
    of_round.ended()
    assert [of_round.counted(sender) for sender in range(len(weights))] == weights
    return [of_round.credited(sender) for sender in range(len(weights))]


DENSE, ZEROS, LAST = torch.ones(2000), torch.zeros(2000), torch.cat([torch.zeros(1999), torch.ones(1)])
ROWS = torch.cat([torch.zeros(1000), torch.ones(1000)])  # of the tokens that somebody has


def test_zeros_earn_nothing() -> None:
    """Also of two of five; a single other value earns as ever."""
    assert credited([DENSE, DENSE, ZEROS], [8.0, 8.0, 8.0]) == [8.0, 8.0, 0.0]
    assert credited([DENSE, ZEROS, DENSE, ZEROS, DENSE], [8.0, 4.0, 9.0, 9.0, 8.0]) == [8.0, 0.0, 9.0, 0.0, 8.0]
    assert credited([DENSE, DENSE, LAST], [8.0, 8.0, 8.0]) == [8.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("brought", "own", "averaging"),
    [
        ([ZEROS, ZEROS, ZEROS], 8.0, None),
        ([DENSE, ZEROS, ZEROS], 8.0, None),
        ([DENSE, ROWS, ZEROS], 8.0, None),
        ([DENSE, DENSE, ZEROS], 0.06, None),
        ([DENSE, ZEROS], 8.0, None),
        ([DENSE[:1000], DENSE[:1000], ZEROS[:1000]], 8.0, None),
        ([DENSE, DENSE, ZEROS], 8.0, Averaging(local_steps=2)),
    ],
)
def test_honest_zeros_are_credited(brought: list[torch.Tensor], own: float, averaging: Averaging | None) -> None:
    """Where others have mostly zeros, too, or far more samples, and where values are few or mean something else."""
    weights = [8.0] * (len(brought) - 1) + [own]
    assert credited(brought, weights, averaging) == weights


def test_noise_says_nothing_of_samples_where_a_gradient_is_no_mean_over_them() -> None:
    """Nobody's weight is cut for noise of local steps, and a new member's share is not bounded."""
    guard, rng = ReductionGuard(Notes(), averaging=Averaging(local_steps=2)), torch.Generator().manual_seed(0)
    for _ in range(3):
        assert taken(guard, [160.0, 8.0, 8.0, 8.0], [1.0] * 4, {}, rng) == [160.0, 8.0, 8.0, 8.0]


def test_weights_are_capped_by_name() -> None:
    """What the trainer had told when the round began holds."""
    guard = ReductionGuard(Notes())
    guard.caps = WeightCaps({"a": 5.0}, 1.0)
    of_round = begun(guard, gradients(0), 1.0)
    assert [of_round.believed(index, 7.0) for index in range(3)] == [5.0, 1.0, 1.0]
    assert of_round.believed(0, 2.0) == 2.0


def test_who_was_refused_is_out_of_the_groups_other_half_only() -> None:
    """The next group begins anew."""
    guard = ReductionGuard(Notes())
    guard.begin(b"group", b".images").refused.add("b")
    assert guard.begin(b"group", b"").refused == {"b"}
    assert guard.begin(b"another", b"").refused == set()


def test_centred_clipping_begins_from_the_last_average() -> None:
    """A sender that is ten times too large moves it by a radius of the usual norm, divided by the root of its share."""
    guard = ReductionGuard(Notes(), averaging=Averaging(aggregation="centered_clipping", clipping_iterations=1))
    last = gradients(0)
    for _ in range(LEAST_ROUNDS):
        guard.accepted(b"", last)
    attack = [3.0 * tensor for tensor in last]
    averages = reduced(begun(guard, last, 1.0), [last, last, attack], [1.0] * 3)
    for average, centre in zip(averages, parts(last), strict=True):
        assert norm_of(average - centre) <= 2.0 * norm_of(centre) / math.sqrt(3) * 2
    most = [[30.0 * tensor for tensor in last]] * 2  # so is the senders' median
    for average, centre in zip(reduced(begun(guard, last, 1.0), [last, *most], [1.0] * 3), parts(last), strict=True):
        assert norm_of(average - centre) <= 2.0 * norm_of(centre) / math.sqrt(3) * 4
    mean = reduced(begun(ReductionGuard(Notes()), last, 1.0), [last, last, attack], [1.0] * 3)
    assert norm_of(averages[-1] - last[1]) <= norm_of(mean[-1] - last[1]) + 1e-6


@pytest.mark.parametrize(
    ("sizes", "own", "found"),
    [
        ({"a": 2e-3, "b": 1e-3}, 1e-3, {}),
        ({"a": 2.0, "b": 1e-3}, 1e-3, {"a": 2.0}),
        ({"a": 2.0, "b": 1e-3}, 0.0, {"a": 2.0}),  # a keeper, by what the others return
        ({"a": 14.0, "b": 15.0}, 0.0, {}),  # all gradients have grown
        ({"a": 14.0}, 0.1, {}),  # this peer's, too
        ({"a": 1e5, "b": 1.0}, 1.0, {"a": 100.0}),  # far more than the others'
        ({"a": 1e9}, 0.0, {}),  # nothing to compare with
        ({"me": 1e9, "b": 1e-3}, 1e-3, {}),  # this peer itself
    ],
)
def test_an_average_is_too_large_beside_the_others_of_its_round(
    sizes: dict[str, float], own: float, found: dict[str, float]
) -> None:
    """Gradients that have grown for all name nobody, and history alone does not either."""
    assert too_large(sizes, own, trusted="me") == pytest.approx(found)


def test_nothing_is_too_large_before_there_are_rounds() -> None:
    """Nor for a tensor whose averages were zero so far; each half of a round has its own."""
    screen = AverageScreen()
    for _ in range(LEAST_ROUNDS):
        assert screen.limits(HALF, 2) == [math.inf, math.inf]
        screen.accepted(HALF, [torch.full((4,), 3.0), torch.zeros(4)])
    assert screen.limits(HALF, 2) == [pytest.approx(6.0 * JUMP), math.inf]
    assert screen.limits(b".images", 2) == [math.inf, math.inf]


def test_limits_follow_the_last_rounds() -> None:
    """The largest of them counts, until it is forgotten."""
    screen = AverageScreen()
    screen.accepted(HALF, [torch.full((1,), 50.0)])
    for _ in range(REMEMBERED_ROUNDS - 1):
        screen.accepted(HALF, [torch.ones(1)])
    assert screen.limits(HALF, 1) == [pytest.approx(50.0 * JUMP)]
    screen.accepted(HALF, [torch.ones(1)])
    assert screen.limits(HALF, 1) == [pytest.approx(JUMP)]


def test_other_tensors_are_held_to_the_largest_norm_of_those_before_them() -> None:
    """A change of the code of gradients opens no round to averages of any size."""
    screen = AverageScreen()
    screen.forget_tensors()
    assert screen.limits(HALF, 1) == [math.inf]
    for _ in range(LEAST_ROUNDS):
        screen.accepted(HALF, [torch.full((4,), 3.0), torch.ones(1)])
    screen.forget_tensors()
    screen.accepted(b".images", [torch.ones(1)])
    screen.forget_tensors()  # so few rounds tell nothing
    assert screen.limits(b".images", 3) == screen.limits(HALF, 3) == [pytest.approx(6.0 * JUMP)] * 3
    for _ in range(LEAST_ROUNDS):
        screen.accepted(HALF, [torch.ones(1)])
    assert screen.limits(HALF, 1) == [pytest.approx(JUMP)]
