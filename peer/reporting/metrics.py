"""Counts for the operator's metrics: averaging rounds by outcome and duration, and peers by role.

The coordinator service may import this module, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

BOUNDS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)  # upper bounds of histogram bins (inclusive)
Census = tuple[tuple[str, bool, int], ...]  # (role, directly reachable, number of peers)


@dataclass(frozen=True)
class RoundTally:
    """The numbers of averaging rounds since the peer started, by outcome and duration."""

    failed: int = 0
    by_duration: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)  # successful rounds by bin
    seconds: float = 0.0  # total duration of successful rounds

    @property
    def succeeded(self) -> int:
        """The number of successful rounds."""
        return sum(self.by_duration)

    def with_failure(self) -> RoundTally:
        """Return the tally plus one failed round."""
        return RoundTally(self.failed + 1, self.by_duration, self.seconds)

    def with_success(self, seconds: float) -> RoundTally:
        """Return the tally plus one successful round."""
        place = bisect_left(BOUNDS_S, seconds)
        counts = (*self.by_duration[:place], self.by_duration[place] + 1, *self.by_duration[place + 1 :])
        return RoundTally(self.failed, counts, self.seconds + seconds)


class RoundCounts:
    """A counter of consecutive averaging rounds; any thread may read `tally`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at: float | None = None
        self.tally = RoundTally()  # rounds counted so far

    def begin(self) -> None:
        """Start timing a round, when this peer starts to look for a group."""
        self._began_at = self._clock()

    def end(self, succeeded: bool) -> None:
        """Count the current round as ended; do nothing if none has begun."""
        began_at, self._began_at = self._began_at, None
        if began_at is not None:
            tally = self.tally
            self.tally = tally.with_success(self._clock() - began_at) if succeeded else tally.with_failure()


def census_of(peers: Iterable[tuple[str, bool]]) -> Census:
    """Count peers by the role in their tokens and by direct reachability."""
    return tuple((role, reachable, count) for (role, reachable), count in sorted(Counter(peers).items()))
