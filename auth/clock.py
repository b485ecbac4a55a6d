"""Swarm time: the coordinator's clock, which peers use instead of their own.

hivemind nodes consider each other unreachable if their clocks differ by more than three seconds,
for example after a suspend. Peers therefore follow the coordinator's clock. Between messages from
the coordinator, they use a monotonic clock, which users cannot set.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections import deque
from collections.abc import Callable

READINGS = 8  # number of the coordinator's latest messages to compare
NOTABLE_S = 0.5  # changes of the offset by fewer seconds are ignored

# Swarm time minus steady time; in shared memory, because the forked swarm node gets no control messages.
_offset_s = multiprocessing.Value("d", math.nan, lock=False)


def steady_time() -> float:
    """Return a system-wide monotonic time in seconds, which includes suspended time on Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def follow_coordinator(offset_s: float) -> None:
    """Set swarm time to steady time plus `offset_s`, in this process and its forks."""
    _offset_s.value = offset_s


def swarm_time() -> float:
    """Return the coordinator's Unix time, or the local time before the coordinator's first message."""
    offset_s = float(_offset_s.value)
    return time.time() if math.isnan(offset_s) else steady_time() + offset_s


class ReadClock:
    """An estimator of the coordinator's clock from its most recent messages.

    Network delay makes the coordinator's clock appear slow; the largest offset is the best one.
    """

    def __init__(self, steady: Callable[[], float] = steady_time) -> None:
        self._steady = steady
        self._offsets: deque[float] = deque(maxlen=READINGS)
        self._told_s = math.nan

    def read(self, server_time: float) -> float | None:
        """Record a message's time (0 if absent). Return the offset, or None if almost unchanged."""
        if server_time <= 0 or not math.isfinite(server_time):
            return None
        self._offsets.append(server_time - self._steady())
        offset_s = max(self._offsets)
        if abs(offset_s - self._told_s) <= NOTABLE_S:
            return None
        self._told_s = offset_s
        return offset_s
