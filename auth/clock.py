"""Swarm time: the coordinator's, whatever a peer's own clock says, and however it is set meanwhile.

hivemind's nodes take each other for unreachable if their clocks differ by more than three seconds, as those of machines
that slept do. So a peer goes by the time that the coordinator tells it, and between two words of the coordinator by a
clock that nobody sets.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections import deque
from collections.abc import Callable

READINGS = 8  # by which a clock is known
NOTABLE_S = 0.5  # a smaller difference changes nothing

# Swarm time less steady time. hivemind forks processes that run for as long as the node and take no messages of ours.
_offset_s = multiprocessing.Value("d", math.nan, lock=False)


def steady_time() -> float:
    """Return seconds since some moment, the same for all processes of this machine; sleep counts where it can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def follow_coordinator(offset_s: float) -> None:
    """Let this process and those forked from it go by the coordinator's time, which is steady time and so much more."""
    _offset_s.value = offset_s


def swarm_time() -> float:
    """Return Unix seconds by the coordinator's clock; by this machine's own where the coordinator has told nothing."""
    offset_s = float(_offset_s.value)
    return time.time() if math.isnan(offset_s) else steady_time() + offset_s


class ReadClock:
    """The coordinator's clock, as its newest messages show it.

    A message that was held up shows the clock as it was: so the one that came quickest counts.
    """

    def __init__(self, steady: Callable[[], float] = steady_time) -> None:
        self._steady = steady
        self._offsets: deque[float] = deque(maxlen=READINGS)
        self._told_s = math.nan

    def read(self, server_time: float) -> float | None:
        """Take a message's time (0: it has none); return the offset to follow, None if that is as it was."""
        if server_time <= 0 or not math.isfinite(server_time):
            return None
        self._offsets.append(server_time - self._steady())
        offset_s = max(self._offsets)
        if abs(offset_s - self._told_s) <= NOTABLE_S:
            return None
        self._told_s = offset_s
        return offset_s
