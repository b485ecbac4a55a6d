"""A loss that leaves its course is found early, and an honest one never."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from coordinator.statistics.course import LEAST_RISE, SMOOTHED, Rise, medians_of, rise_of, scatter_of

LENGTH = 500
LOOK_EVERY = 10  # steps; a rise that is found holds for a while
SEEDS = 40
DEMO = ((1, 8.6), (18, 6.29), (44, 6.23), (124, 6.64), (155, 7.06), (165, 10.4), (175, 14.1))  # the losses of a demo
Course = list[tuple[int, float]]


def noisy(trend: list[float], scatter: float, rng: random.Random) -> Course:
    """The losses of steps from 1 on; `scatter`: a step's standard deviation in the loss's own size."""
    return [(step, level * (1 + rng.gauss(0, scatter))) for step, level in enumerate(trend, start=1)]


def first_rise(course: Course, every: int = 1) -> tuple[int, Rise] | None:
    """The step at which a rise is found first, and the rise."""
    ends = range(every, len(course) + 1, every)
    return next(((course[end - 1][0], rise) for end in ends if (rise := rise_of(course[:end]))), None)


def demo_loss(step: int) -> float:
    """The demo's loss, in straight lines between the steps that were told."""
    (x0, y0), (x1, y1) = next(pair for pair in pairwise(DEMO) if step <= pair[1][0])
    return y0 + (y1 - y0) * (step - x0) / (x1 - x0)


FALLING = [6 + 4 * math.exp(-step / 60) for step in range(LENGTH)]
PLATEAU = [6.0] * LENGTH


@pytest.mark.parametrize("trend", [FALLING, PLATEAU], ids=["falling", "plateau"])
@pytest.mark.parametrize("scatter", [0.003, 0.02, 0.06], ids=["large batches", "small batches", "tiny batches"])
def test_an_honest_course_is_quiet(trend: list[float], scatter: float) -> None:
    """None of forty noisy curves of 500 steps, falling or flat, is taken for a rise."""
    found = [first_rise(noisy(trend, scatter, random.Random(seed)), LOOK_EVERY) for seed in range(SEEDS)]
    assert found == [None] * SEEDS


@pytest.mark.parametrize(("scatter", "within_steps"), [(0.003, 10), (0.01, 25), (0.02, 40)])
def test_a_rise_is_found_soon_after_it_is_a_twentieth(scatter: float, within_steps: int) -> None:
    """A loss that fell, and rises by a thousandth of its best with each step, is found; it began where it rose."""
    bottom = FALLING[250]
    rising = [*FALLING[:250], *(bottom * (1 + step / 1000) for step in range(150))]
    reached = 250 + round(1000 * LEAST_RISE)
    for seed in range(20):
        found = first_rise(noisy(rising, scatter, random.Random(seed)))
        assert found is not None
        at, rise = found
        assert at <= reached + within_steps
        assert 200 < rise.began < reached


def test_a_demo_that_left_its_course_was_found_late() -> None:
    """It is found before step 124, where the loss was 6.64 after 6.23, with the noise of a small batch."""
    for seed in range(20):
        rng = random.Random(seed)
        found = first_rise([(step, demo_loss(step) + rng.gauss(0, 0.06)) for step in range(1, 176)])
        assert found is not None
        at, rise = found
        assert 80 < at < 124
        assert rise.best == pytest.approx(6.23, abs=0.15)
        assert 30 < rise.began < 90


def test_a_jump_is_found_after_three_steps() -> None:
    """The median of five steps shows it, not one or two bad steps; a rise names where it began."""
    flat = [(step, 4.0 + 0.01 * (step % 3)) for step in range(1, 101)]
    assert rise_of([*flat, (101, 9.0), (102, 9.0), (103, 4.0)]) is None
    rise = rise_of([*flat, (101, 9.0), (102, 9.0), (103, 9.0)])
    assert rise is not None
    assert 99 <= rise.began <= 101
    assert (rise.now, rise.best) == pytest.approx((9.0, 4.01))


def test_before_the_scatter_is_known_only_a_large_rise_counts() -> None:
    """More than half of the best, after a few steps as later."""
    assert scatter_of([3.0] * 10) is None
    assert rise_of([(step, 3.0 if step < 8 else 4.4) for step in range(1, 15)]) is None
    rise = rise_of([(step, 3.0 if step < 8 else 4.6) for step in range(1, 15)])
    assert rise is not None
    assert rise.began == 8


def test_a_rise_ends_when_the_loss_is_half_way_back() -> None:
    """So that noise about the line does not raise and clear an alarm again and again."""
    course = [(step, 4.0) for step in range(1, 101)] + [(step, 4.3) for step in range(101, 111)]
    assert rise_of(course) is not None
    assert rise_of([*course, *((step, 4.15) for step in range(111, 130))]) is not None
    assert rise_of([*course, *((step, 4.05) for step in range(111, 130))]) is None


def test_the_scatter_is_told_apart_from_the_trend() -> None:
    """A steady fall has none."""
    assert scatter_of([9 - 0.01 * step for step in range(100)]) == pytest.approx(0.0, abs=1e-9)
    rng = random.Random(1)
    values = [6 - 0.01 * step + rng.gauss(0, 0.1) for step in range(1000)]
    assert scatter_of(medians_of(values, SMOOTHED)) == pytest.approx(1.2 * 0.1 / math.sqrt(5), rel=0.15)


def test_a_burst_that_is_over_is_no_rise() -> None:
    """Its high losses do not linger in the wide medians."""
    course = [(step, 4.0 + 0.01 * (step % 3)) for step in range(1, 201)]
    assert (
        rise_of([*course, *((step, 9.0) for step in range(201, 207)), *((step, 4.0) for step in range(207, 212))])
        is None
    )
