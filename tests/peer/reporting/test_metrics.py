"""Rounds of averaging are counted by how they ended and how long they took."""

from __future__ import annotations

from peer.reporting.metrics import BOUNDS_S, RoundCounts
from tests.support.clocks import Clock


def test_rounds_are_counted_by_outcome_and_duration() -> None:
    """A successful one falls into the bucket whose bound it does not exceed; a failed one has no duration."""
    clock = Clock()
    counts = RoundCounts(clock)
    for seconds, succeeded in ((0.5, True), (7.0, True), (1000.0, True), (3.0, False)):
        counts.begin()
        clock.now += seconds
        counts.end(succeeded)
    tally = counts.tally
    assert (tally.succeeded, tally.failed, tally.seconds) == (3, 1, 1007.5)
    assert tally.by_duration[0] == 1
    assert tally.by_duration[BOUNDS_S.index(10.0)] == 1
    assert tally.by_duration[-1] == 1


def test_what_never_began_is_no_round() -> None:
    """A peer that is alone, or not due any more, averages with nobody and fails at nothing."""
    counts = RoundCounts(Clock())
    counts.end(succeeded=False)
    counts.end(succeeded=True)
    assert (counts.tally.succeeded, counts.tally.failed) == (0, 0)
