"""Warnings for the volunteer, few enough to be read; all of them go to the log.

Used by `peer.training.worker` for what the data path reports, from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)
PAUSE_S = 60.0
SAME_PAUSE_S = 3600.0  # what stays wrong is said again now and then


class SparingReports:
    """Passes on one warning a minute at most, the same one once an hour, and says how many it withheld."""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._silent_until = clock()
        self._withheld = 0
        self._last, self._last_until = "", clock()

    def __call__(self, text: str) -> None:
        logger.warning(text)
        with self._lock:
            now = self._clock()
            if now < self._silent_until or (text == self._last and now < self._last_until):
                self._withheld += 1
                return
            more = f" (The log has {self._withheld} more warnings since the last one.)" if self._withheld else ""
            self._silent_until, self._withheld = now + PAUSE_S, 0
            self._last, self._last_until = text, now + SAME_PAUSE_S
        self._tell(text + more)
