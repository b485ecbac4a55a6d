"""The curve for charts: thinned out, smoothed, cut out, and true to the steps."""

from __future__ import annotations

import math

import pytest

from coordinator.statistics.curve import kept_places
from coordinator.web.api.curve import moving_average


def test_few_points_all_stay() -> None:
    """Nothing is left out where there is room."""
    assert kept_places([1, 2, 3], [5, 4, 3], 3) == [0, 1, 2]
    assert kept_places([], [], 10) == []
    assert kept_places(range(9), range(9), 2) == list(range(9))


@pytest.mark.parametrize("most", [3, 4, 50, 99, 100])
def test_the_ends_stay_and_the_order(most: int) -> None:
    """As many as wanted, rising, first and last among them."""
    ys = [math.sin(x / 5) for x in range(101)]
    kept = kept_places(range(101), ys, most)
    assert len(kept) == most
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, 100)


def test_a_spike_stays() -> None:
    """A single point that stands out is the shape: a mean would hide it."""
    ys = [1.0] * 20_000
    ys[12_345] = 9.0
    kept = kept_places(range(20_000), ys, 400)
    assert 12_345 in kept


def test_the_moving_average_follows() -> None:
    """It begins with the first value, and comes nearer to a new one by the same part each step."""
    assert moving_average([4.0, 4.0, 4.0], 9) == [4.0, 4.0, 4.0]
    assert moving_average([0.0, 10.0, 10.0], 3) == [0.0, 5.0, 7.5]
    assert moving_average([], 3) == []
