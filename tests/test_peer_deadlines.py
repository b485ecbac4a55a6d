"""The deadline of a round follows what rounds take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from peer.deadlines import LEAST_KNOWN, LEAST_S, REMEMBERED, RoundDeadline


def after(rounds: Sequence[float], most_s: float = 600.0) -> RoundDeadline:
    """The deadline after rounds that took these seconds."""
    deadline = RoundDeadline(most_s)
    for seconds in rounds:
        deadline.succeeded(seconds)
    return deadline


def test_at_first_the_runs_limit_holds() -> None:
    """Nothing is known yet."""
    assert after([2.0] * (LEAST_KNOWN - 1)).seconds == 600.0


def test_it_follows_the_rounds() -> None:
    """Slow lines get more time, and rounds that vary more than rounds that are alike."""
    assert after([30.0] * 10).seconds == pytest.approx(90.0)
    assert after([20.0, 40.0] * 5).seconds > after([30.0] * 10).seconds
    assert after([0.2] * 10).seconds == LEAST_S


def test_one_slow_round_changes_little_and_twenty_change_it() -> None:
    """The median is what counts, of the newest rounds."""
    assert after([30.0] * 10 + [500.0]).seconds == pytest.approx(90.0)
    assert after([30.0] * 10 + [60.0] * REMEMBERED).seconds == pytest.approx(180.0)


def test_failures_double_it_up_to_the_runs_limit() -> None:
    """A line that got slower is given more time, not up."""
    deadline = after([30.0] * 10)
    for expected in (180.0, 360.0, 600.0, 600.0):
        deadline.failed()
        assert deadline.seconds == pytest.approx(expected)
    for _ in range(10_000):
        deadline.failed()
    assert deadline.seconds == 600.0
    deadline.succeeded(30.0)
    assert deadline.seconds == pytest.approx(90.0)


def test_it_never_exceeds_the_runs_limit() -> None:
    """Which the operator sets."""
    assert after([30.0] * 10, most_s=45.0).seconds == 45.0
    assert after([0.1] * 10, most_s=5.0).seconds == 5.0


def test_the_least_is_what_is_measured() -> None:
    """The gathering of a group has another least time than a round."""
    deadline = RoundDeadline(15.0, least_s=3.0)
    for _ in range(LEAST_KNOWN):
        assert deadline.seconds == 15.0
        deadline.succeeded(0.5)
    assert deadline.seconds == 3.0
