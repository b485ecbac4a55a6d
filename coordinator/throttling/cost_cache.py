"""A cache for a value that is costly to compute and asked for again and again by several threads.

A value that costs little is always new. One that takes long, such as sums over millions of reports, is computed again
only when ten times as long has passed, so that it never takes more than a tenth of a core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

LITTLE_S = 0.25
REST = 10  # times as long as it took

Value = TypeVar("Value")


class Costly(Generic[Value]):
    """The newest value of `work`, or a recent one; who asks while it is worked out waits for that."""

    def __init__(self, work: Callable[[], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._clock = work, clock
        self._found: Value | None = None
        self._good_until = clock()
        self._lock = threading.Lock()

    def __call__(self) -> Value:
        """The value."""
        with self._lock:
            began = self._clock()
            if self._found is None or began >= self._good_until:
                self._found = self._work()
                took_s = self._clock() - began
                self._good_until = began + took_s * (1 + REST) if took_s > LITTLE_S else began
            return self._found
