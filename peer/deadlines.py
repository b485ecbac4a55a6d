"""How long something that happens every round may take: as long as it really takes here, and some more."""

from __future__ import annotations

import statistics
from collections import deque

REMEMBERED = 20  # rounds
LEAST_KNOWN = 5  # rounds, before which the run's own limit holds
SPREADS = 8  # beyond the median
TIMES_MEDIAN = 3  # and at least so many medians: rounds that are all alike have no spread
LEAST_S = 10.0  # a busy processor alone may hold a round up for seconds
SPREAD_OF_DEVIATION = 1.4826  # the median absolute deviation of a normal distribution to its standard deviation


class RoundDeadline:
    """Follows the rounds: median plus a multiple of the spread, never above the run's limit; doubled by each failure.

    The averager keeps one for its rounds, and the optimizer one for the gathering of groups before them.

    Median and median absolute deviation, because one round that a sleeping laptop held up must not count for twenty.
    """

    def __init__(self, most_s: float, least_s: float = LEAST_S) -> None:
        self._most_s, self._least_s = most_s, least_s
        self._taken: deque[float] = deque(maxlen=REMEMBERED)
        self._failures = 0  # since the last round that succeeded

    @property
    def seconds(self) -> float:
        """What the next round may take."""
        if len(self._taken) < LEAST_KNOWN:
            return self._most_s
        median = statistics.median(self._taken)
        spread = SPREAD_OF_DEVIATION * statistics.median(abs(taken - median) for taken in self._taken)
        expected = max(self._least_s, TIMES_MEDIAN * median, median + SPREADS * spread)
        return min(self._most_s, expected * 2.0 ** min(self._failures, 32))

    def succeeded(self, seconds: float) -> None:
        """A round has brought every value."""
        self._taken.append(seconds)
        self._failures = 0

    def failed(self) -> None:
        """A round has not; perhaps it had too little time."""
        self._failures += 1
