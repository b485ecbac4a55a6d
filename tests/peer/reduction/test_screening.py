"""Screening of a sender's part by the usual size of averages: accepted, scaled down, or refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, strategies as st

from peer.reduction.combine import RefusedPart
from peer.reduction.screening import (
    GROSS,
    LEAST_FACTOR,
    LEAST_ROUNDS,
    MARGIN,
    MOST_FACTOR,
    MOST_MARGIN,
    REMEMBERED_ROUNDS,
    NormHistory,
    PartPlace,
    Yardsticks,
    require_weight,
    scale_to,
    usual_limit,
)

WHOLE = PartPlace(0, 1.0)

NORMS = st.floats(0, 1e300, allow_nan=False)


@example(limit=3.025015677630911e-18, contribution=9.223100458160466e299)
@given(limit=NORMS | st.just(math.inf), contribution=NORMS)
def test_nothing_exceeds_its_limit(limit: float, contribution: float) -> None:
    """What is within it stays as it is."""
    scale = scale_to(limit, contribution)
    assert 0 <= scale <= 1
    assert scale * contribution <= limit * (1 + 1e-9)
    assert scale == 1 or contribution > limit


def test_what_is_gross_is_so_beside_what_is_usual() -> None:
    """It is known from earlier rounds; before these, from this peer's own gradient of all tensors."""
    assert Yardsticks([10], [1.0], [0.5]).gross(WHOLE, 1.0) == GROSS
    assert Yardsticks([10], [1.0], None).gross(WHOLE, 1.0) == GROSS * MARGIN
    assert Yardsticks([10], [0.0], None).gross(WHOLE, 1.0) == math.inf
    assert Yardsticks([10], [0.0], [0.0]).gross(WHOLE, 0.0) == 0


def test_a_head_without_a_gradient_at_two_of_three_is_not_gross_at_the_third() -> None:
    """With as many pairs in order as not, the bias for sentence order has no gradient, while all others have theirs."""
    yardsticks, norms = Yardsticks([1024, 2], [1.0, 1e-9], None), [1e-9, 1e-9, 0.15]
    limit = yardsticks.limit(PartPlace(1, 1.0), norms)
    assert scale_to(limit, 0.15) < 1
    assert yardsticks.gross(PartPlace(1, 1.0), limit) > 0.15


def test_what_is_usual_is_never_gross() -> None:
    """A reducer that has learnt its own samples has almost no gradient; the other's, as large as ever, is made smaller.

    The norms are those of ALBERT's pooler at step 164 of two honest peers.
    """
    yardsticks = Yardsticks([1024], [7.86e-7], [0.494])
    limit = yardsticks.limit(WHOLE, [2.38, 7.86e-7])
    assert limit == MOST_MARGIN * 7.86e-7
    assert scale_to(limit, 1.19) == limit / 1.19
    assert yardsticks.gross(WHOLE, limit) == GROSS * 0.494


@given(st.lists(st.floats(1.0, 1e4), min_size=3, max_size=20), st.floats(1e-6, 1e6))
def test_senders_of_one_noise_are_never_limited(weights: list[float], noise: float) -> None:
    """However unequal their batches are: a gradient of few samples is large and counts little."""
    total = sum(weights)
    norms = [noise / math.sqrt(weight) for weight in weights]
    for own in (0.0, norms[0]):
        limit = Yardsticks([10], [own], None).limit(WHOLE, norms)
        assert all(weight / total * norm <= limit for weight, norm in zip(weights, norms, strict=True))


def test_one_sender_does_not_move_the_limit() -> None:
    """Among three, the median is an honest one's."""
    limits = [Yardsticks([10], [0.0], None).limit(WHOLE, [1.0, 1.5, bad]) for bad in (2.0, 1e30)]
    assert limits[0] == limits[1] == MARGIN * 1.5


def test_two_senders_are_not_measured_before_there_is_a_history() -> None:
    """Nobody can tell which of them is right."""
    assert Yardsticks([10], [2.0], None).limit(WHOLE, [1.0, 1e9]) == math.inf
    assert Yardsticks([10], [2.0], [7.0]).limit(WHOLE, [1.0, 1e9]) == MARGIN * 2.0
    assert Yardsticks([10], [0.0], None).limit(WHOLE, [1.0, 1e9]) == math.inf
    assert Yardsticks([10], [0.0], [7.0]).limit(WHOLE, [1.0, 1e9]) == 7.0


@pytest.mark.parametrize("norms", [[100.0, 120.0], [100.0], [9e4, 1e5]])
def test_gradients_that_have_grown_together_are_no_suspects(norms: list[float]) -> None:
    """Of a reducer without a gradient of its own: who looks after it sees no large one among the inputs."""
    assert Yardsticks([10], [0.0], [7.0]).limit(WHOLE, norms) == MARGIN * min(norms)


def test_history_widens_the_limit_within_bounds() -> None:
    """One sender's rare mistake is as large as averages were before; but what earlier rounds let in opens no door."""
    limits = [Yardsticks([10], [2.0], [usual]).limit(WHOLE, []) for usual in (0.1, 12.0, 1e30)]
    assert limits == [MARGIN * 2.0, 12.0, MOST_MARGIN * 2.0]


def test_a_part_may_hold_all_of_a_tensor() -> None:
    """One quarter of the values is measured by the norm of the whole."""
    quarter = PartPlace(0, 0.25)
    assert Yardsticks([40], [2.0], None).limit(quarter, [0.5] * 3) == MARGIN * 2.0
    assert Yardsticks([40], [0.0], None).limit(quarter, [1.0] * 3) == MARGIN * 2.0


def test_a_tensor_that_was_zero_is_measured_by_the_others() -> None:
    """A layer that begins to learn is let in, and is no hole through which anything comes."""
    yardsticks = Yardsticks([4, 16], [0.0, 0.0], [0.0, 8.0])
    assert yardsticks.limit(WHOLE, [0.0, 0.0, 1.0]) == MARGIN * 8.0 / 4 * 2
    assert Yardsticks([4, 16], [0.0, 8.0], None).limit(WHOLE, [0.0] * 3) == MARGIN * 4.0


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, -1.0])
def test_a_weight_is_a_number_of_samples(weight: float) -> None:
    """Anything else is refused."""
    with pytest.raises(RefusedPart, match="named the weight"):
        require_weight(weight, None)


def test_a_sender_has_one_weight() -> None:
    """The same with each part."""
    require_weight(3.0, 3.0)
    require_weight(0.0, None)
    with pytest.raises(RefusedPart, match="weights 3 and 4"):
        require_weight(4.0, 3.0)


@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=REMEMBERED_ROUNDS))
def test_the_limit_keeps_to_its_bounds(norms: list[float]) -> None:
    """Rounds that are all alike leave room, and rounds that are all different not too much."""
    middle = sorted(norms)
    limit = usual_limit(norms)
    assert middle[0] * LEAST_FACTOR * 0.999 <= limit <= middle[-1] * MOST_FACTOR * 1.001


def test_one_spike_moves_little() -> None:
    """A single round that was a thousand times larger is not what is usual."""
    assert usual_limit([1.0] * 8 + [1000.0]) == pytest.approx(LEAST_FACTOR)


def test_what_varies_has_a_wider_limit() -> None:
    """Rounds that differ threefold from one to the next may do so again."""
    assert usual_limit([1.0, 3.0, 1.0, 3.0, 9.0, 3.0, 1.0]) > LEAST_FACTOR * 3.0


def test_tensors_without_gradient() -> None:
    """Where most averages are zero, nothing is usual; a few zeros among others change little."""
    assert usual_limit([0.0] * 4 + [1.0]) == 0.0
    assert usual_limit([0.0] + [1.0] * 4) == pytest.approx(LEAST_FACTOR)


def test_history_begins_after_some_rounds_and_forgets_old_ones() -> None:
    """Before, nothing is known; later only the last rounds count."""
    history = NormHistory()
    for _ in range(LEAST_ROUNDS - 1):
        history.add([1.0, 5.0])
    assert (history.limits(), history.medians()) == (None, None)
    history.add([1.0, 5.0])
    assert history.medians() == [1.0, 5.0]
    for _ in range(REMEMBERED_ROUNDS):
        history.add([2.0, 0.0])
    assert history.limits() == [pytest.approx(2.0 * LEAST_FACTOR), 0.0]
