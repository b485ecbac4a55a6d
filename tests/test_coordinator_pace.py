"""The token bucket behind the control plane's limits."""

from __future__ import annotations

import pytest

from coordinator.pace import Pace


def test_a_burst_is_free_and_then_each_event_waits_its_turn() -> None:
    """Two at once, then one each half second."""
    pace = Pace(per_second=2.0, burst=2.0, now=0.0)
    assert [pace.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]


def test_time_gives_the_burst_back_but_no_more() -> None:
    """A long silence does not save up more than the burst."""
    pace = Pace(per_second=2.0, burst=2.0, now=0.0)
    pace.take(0.0)
    assert [pace.take(1000.0) for _ in range(3)] == [0.0, 0.0, 0.5]


def test_allows_counts_only_what_it_allows() -> None:
    """Refused events do not push the next permission further away."""
    pace = Pace(per_second=1.0, burst=1.0, now=0.0)
    assert [pace.allows(0.0) for _ in range(10)] == [True] + [False] * 9
    assert pace.allows(1.0)


def test_a_clock_that_jumps_back_gives_nothing() -> None:
    """The level only grows with time that has passed."""
    pace = Pace(per_second=1.0, burst=1.0, now=100.0)
    pace.take(100.0)
    assert pace.take(50.0) == pytest.approx(1.0)
