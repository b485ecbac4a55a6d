"""How many days in a row somebody gave something. Pure: days are whole numbers, since 1970-01-01 (UTC)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Streaks:
    """In days."""

    current: int  # up to today, or to yesterday while today has nothing yet
    longest: int
    active: int  # all days with something


def streaks(days: Iterable[int], today: int) -> Streaks:
    """What these days, in any order, come to."""
    given = sorted(set(days))
    longest = length = 0
    lengths: dict[int, int] = {}  # the day -> how long the streak is with it
    for day in given:
        length = length + 1 if day - 1 in lengths else 1
        lengths[day] = length
        longest = max(longest, length)
    return Streaks(lengths.get(today, lengths.get(today - 1, 0)), longest, len(given))
