"""Swarm time: the coordinator's clock, which peers use in place of their own.

hivemind's nodes treat each other as unreachable if their clocks differ by more than three seconds,
as happens after a machine was suspended. So a peer follows the coordinator's time; between two of
its messages the peer uses a clock that nobody can set.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections import deque
from collections.abc import Callable

READINGS = 8  # newest messages that are compared
NOTABLE_S = 0.5  # a smaller difference changes nothing

# Swarm time minus steady time, in shared memory: the processes that hivemind forks take no messages
# of ours.
_offset_s = multiprocessing.Value("d", math.nan, lock=False)


def steady_time() -> float:
    """Return the seconds of a monotonic clock of all processes; on Linux it counts suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def follow_coordinator(offset_s: float) -> None:
    """Set swarm time to steady time plus `offset_s`, in this process and those forked from it."""
    _offset_s.value = offset_s


def swarm_time() -> float:
    """Return Unix seconds by the coordinator's clock, or by this machine's until it is known."""
    offset_s = float(_offset_s.value)
    return time.time() if math.isnan(offset_s) else steady_time() + offset_s


class ReadClock:
    """An estimate of the coordinator's clock from its newest messages.

    A delayed message shows an earlier time, so the message with the least delay counts.
    """

    def __init__(self, steady: Callable[[], float] = steady_time) -> None:
        self._steady = steady
        self._offsets: deque[float] = deque(maxlen=READINGS)
        self._told_s = math.nan

    def read(self, server_time: float) -> float | None:
        """Add a message's time (0 if it has none). Return the new offset, or None if it has hardly changed."""
        if server_time <= 0 or not math.isfinite(server_time):
            return None
        self._offsets.append(server_time - self._steady())
        offset_s = max(self._offsets)
        if abs(offset_s - self._told_s) <= NOTABLE_S:
            return None
        self._told_s = offset_s
        return offset_s
