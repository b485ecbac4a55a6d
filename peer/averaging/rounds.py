"""Past rounds of averaging: the deadline that they set for the next one, and their memory, given back to the system.

The averagers give memory back in their forked processes. A failed round ends in exceptions, and these hold each other,
through the frames that they passed, in circles: the round with its copy of the gradients, and its open streams. Python
finds such circles when a quarter as many new objects as old ones have come together. A process with all of PyTorch
imported has so many old ones that this takes a thousand rounds. What is freed then, glibc keeps in pieces between what
is still used.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections import deque
from functools import cache
from typing import Any

REMEMBERED = 20  # rounds
LEAST_KNOWN = 5  # rounds, before which the run's own limit holds
SPREADS = 8  # beyond the median
TIMES_MEDIAN = 3  # and at least so many medians: rounds that are all alike have no spread
LEAST_S = 15.0  # a busy processor alone may hold a sender up for seconds, of which each may take a third of this
SPREAD_OF_DEVIATION = 1.4826  # the median absolute deviation of a normal distribution to its standard deviation


class RoundDeadline:
    """A deadline that follows past rounds: their median and spread, never above the run's limit; doubled by failures.

    The averager keeps one for its rounds, and the optimizer one for the gathering of groups before them.

    Median and median absolute deviation, because one round that a sleeping laptop held up must not count for twenty.
    """

    def __init__(self, most_s: float, least_s: float = LEAST_S) -> None:
        self._most_s, self._least_s = most_s, least_s
        self._taken: deque[float] = deque(maxlen=REMEMBERED)
        self._failures = 0  # since the last round that succeeded

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
        """Return the seconds that a group may agree on, within the bounds of this run."""
        return min(self._most_s, max(self._least_s, seconds))

    def succeeded(self, seconds: float) -> None:
        """Remember the duration of a round that has brought every value."""
        self._taken.append(seconds)
        self._failures = 0

    def failed(self) -> None:
        """Count a failed round; perhaps it had too little time."""
        self._failures += 1


def freeze_imported() -> None:
    """Leave all that exists now out of every later search for circles; for the beginning of a forked process.

    So a search takes a few milliseconds, and copies no page that is shared with the process it was forked from.
    """
    gc.freeze()


def give_back() -> None:
    """Free circles of objects that nothing else holds, and return free pages to the system on Linux with glibc."""
    gc.collect()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def forget_frames(error: BaseException | None) -> None:
    """Drop the frames that an exception and those behind it hold, for somebody may keep the exception for long."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
