"""Deadlines based on the durations of earlier rounds, and release of memory after a round.

A failed round ends in exceptions, whose tracebacks form reference cycles with the round, its copy of
the gradients and its streams. Python collects old cycles only after a thousand rounds with PyTorch
imported. Memory freed so late is fragmented, so glibc does not return it.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections import deque
from functools import cache
from typing import Any

REMEMBERED = 20  # number of remembered rounds
LEAST_KNOWN = 5  # number of recorded rounds below which the run's own limit applies
SPREADS = 8  # tolerated number of standard deviations above the median
TIMES_MEDIAN = 3  # smallest deadline in multiples of the median, because equal rounds have no spread
LEAST_S = 15.0  # shortest deadline; a sender has a third of this time, and a busy processor may take seconds
SPREAD_OF_DEVIATION = 1.4826  # ratio of standard deviation to median absolute deviation (normal distribution)


class RoundDeadline:
    """A deadline from past rounds' durations, within the run's limit; each failure doubles it.

    The node has a deadline for rounds, and `peer.averaging.meetings` one for absent peers. Median
    and median absolute deviation limit the effect of a single delayed round.
    """

    def __init__(self, most_s: float, least_s: float = LEAST_S) -> None:
        self._most_s, self._least_s = most_s, least_s
        self._taken: deque[float] = deque(maxlen=REMEMBERED)
        self._failures = 0  # failures since the last success

    @property
    def seconds(self) -> float:
        """The seconds that the next round may take."""
        if len(self._taken) < LEAST_KNOWN:
            return self._most_s
        median = statistics.median(self._taken)
        spread = SPREAD_OF_DEVIATION * statistics.median(abs(taken - median) for taken in self._taken)
        expected = max(self._least_s, TIMES_MEDIAN * median, median + SPREADS * spread)
        return min(self._most_s, expected * 2.0 ** min(self._failures, 32))

    def bounded(self, seconds: float) -> float:
        """Return the group's agreed time limit, clamped to this run's bounds."""
        return min(self._most_s, max(self._least_s, seconds))

    def succeeded(self, seconds: float) -> None:
        """Record the duration of a complete round."""
        self._taken.append(seconds)
        self._failures = 0

    def failed(self) -> None:
        """Count a failed round, whose time limit may have been too short."""
        self._failures += 1


def give_back() -> None:
    """Collect reference cycles, and return free pages to the system on Linux with glibc."""
    gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
