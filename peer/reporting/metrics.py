"""Numbers for the operator's metrics: rounds of averaging, their ends and durations, and the peers that take part.

Light enough for the service to import.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)  # of the histogram, inclusive
Census = tuple[tuple[str, bool, int], ...]  # peers that take part: role, whether others can connect to them, how many


@dataclass(frozen=True)
class RoundTally:
    """Rounds of averaging since the peer started: how many failed, and how long the others took."""

    failed: int = 0
    by_duration: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)  # that succeeded; the last: longer than all bounds
    seconds: float = 0.0  # that those took together

    @property
    def succeeded(self) -> int:
        """The number of rounds that led to a step."""
        return sum(self.by_duration)

    def with_failure(self) -> RoundTally:
        """Return the tally with one more failed round."""
        return RoundTally(self.failed + 1, self.by_duration, self.seconds)

    def with_success(self, seconds: float) -> RoundTally:
        """Return the tally with one more successful round."""
        place = bisect_left(BOUNDS_S, seconds)
        counts = (*self.by_duration[:place], self.by_duration[place] + 1, *self.by_duration[place + 1 :])
        return RoundTally(self.failed, counts, self.seconds + seconds)


class RoundCounts:
    """A counter of rounds, one at a time; read from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        self.tally = RoundTally()  # so far

    def begin(self) -> None:
        """Begin a round: this peer looks for its group."""
        self._began_at = self._clock()

    def end(self, succeeded: bool) -> None:
        """Count the end of the round that was begun; nothing if none was."""
        began_at, self._began_at = self._began_at, None
        if began_at is not None:
            tally = self.tally
            self.tally = tally.with_success(self._clock() - began_at) if succeeded else tally.with_failure()


def census_of(peers: Iterable[tuple[str, bool]]) -> Census:
    """Count the peers of each role (known from their tokens) and reachability."""
    return tuple((role, reachable, count) for (role, reachable), count in sorted(Counter(peers).items()))
