"""Steps as ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.step_ranges import step_ranges


def test_consecutive_steps_are_one_range() -> None:
    """A step that comes twice changes nothing."""
    assert step_ranges([1, 2, 2, 3, 7, 9, 10], most=9) == [(1, 3), (7, 7), (9, 10)]
    assert step_ranges([], most=9) == []


def test_the_narrowest_gaps_go_first() -> None:
    """Where there is room for two ranges only, the widest gap stays."""
    assert step_ranges([1, 3, 5, 50, 52], most=2) == [(1, 5), (50, 52)]
    assert step_ranges([1, 3, 5, 50, 52], most=1) == [(1, 52)]


@given(st.sets(st.integers(1, 300)), st.integers(1, 20))
def test_every_step_is_in_a_range_and_ranges_begin_and_end_with_steps(steps: set[int], most: int) -> None:
    """However few ranges there may be, nobody's step is outside, and none is wider than it must be."""
    ranges = step_ranges(sorted(steps), most)
    assert len(ranges) <= most
    assert all(any(first <= step <= last for first, last in ranges) for step in steps)
    assert {end for each in ranges for end in each} <= steps
    assert ranges == sorted(ranges)
