"""Days in a row."""

from __future__ import annotations

import pytest

from coordinator.streaks import Streaks, streaks


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ([], Streaks(0, 0, 0)),
        ([10], Streaks(1, 1, 1)),
        ([9], Streaks(1, 1, 1)),
        ([8], Streaks(0, 1, 1)),
        ([10, 9, 8, 3, 2], Streaks(3, 3, 5)),
        ([1, 2, 3, 4, 9], Streaks(1, 4, 5)),
        ([5, 5, 6, 6], Streaks(0, 2, 2)),
    ],
)
def test_a_streak_goes_on_until_a_day_has_passed_without_anything(days: list[int], expected: Streaks) -> None:
    """Today need not have anything yet; the longest one stays for ever, and a day counts once."""
    assert streaks(days, today=10) == expected
