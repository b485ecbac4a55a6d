"""The volunteer's loss over global steps, in a bounded number of points."""

from __future__ import annotations

import re

import pytest

from peer.loss_curve import HEIGHT, MAX_POINTS, WIDTH, LossCurve, draw_loss


def curve_of(steps: int) -> LossCurve:
    """A loss that falls by 0.01 a step."""
    curve = LossCurve()
    for step in range(1, steps + 1):
        curve = curve.with_point(step, 10 - 0.01 * step)
    return curve


def test_a_step_has_one_point() -> None:
    """What is known of a step while it is computed is replaced by what is known at its end."""
    curve = LossCurve().with_point(1, 9.0).with_point(2, 8.5).with_point(2, 8.0)
    assert curve.points == ((1, 9.0), (2, 8.0))


def test_undone_steps_leave_the_curve() -> None:
    """When the swarm returns to an earlier step, what came after it goes."""
    assert curve_of(5).with_point(3, 7.0).points[1:] == ((2, 9.98), (3, 7.0))


@pytest.mark.parametrize("steps", [MAX_POINTS, MAX_POINTS + 1, 10_000])
def test_long_curves_are_bounded_and_true(steps: int) -> None:
    """However many steps there were, the points are few, in order, on the line, and reach from end to end."""
    points = curve_of(steps).points
    assert len(points) <= MAX_POINTS
    assert [step for step, _ in points] == sorted(step for step, _ in points)
    assert all(loss == pytest.approx(10 - 0.01 * step, abs=1e-6) for step, loss in points)
    assert len(points) >= MAX_POINTS / 2
    assert points[0][0] <= steps / 100
    assert points[-1][0] >= steps * 0.99


@pytest.mark.parametrize("losses", [(5.0, 5.0), (9.0, 1.0), (1e-9, 1e9)])
def test_drawing_stays_within_its_frame(losses: tuple[float, float]) -> None:
    """Every point lies inside the picture, also if the loss does not change."""
    svg = draw_loss([(1.0, losses[0]), (2.0, losses[1])])
    places = re.findall(r"([\d.-]+),([\d.-]+)", svg.partition('polyline points="')[2].partition('"')[0])
    assert len(places) == 2
    for x, y in (map(float, place) for place in places):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_nothing_is_drawn_of_less_than_two_points() -> None:
    """Before there is a line there is no frame either."""
    assert draw_loss(()) == draw_loss([(1.0, 9.0)]) == ""
