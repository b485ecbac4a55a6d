"""Rate limits for repeated events: the first few of each cause pass, then one a minute with a count.

All processes of coordinators and peers log through `RepeatFilter`, so that a persistent fault does
not fill the disk. The volunteer's terminal, suspicions and advice use `Repeats`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from traceback import format_exception, format_exception_only

WINDOW_S = 60.0
TRACE_S = 3600.0  # minimum interval between stack traces of one cause
MOST_WARNINGS = 5  # number of warnings to let through per cause and window
MOST_NEWS = 30  # number of INFO messages to let through, such as steps of a fast run
MOST_CAUSES = 10_000  # maximum number of causes to remember
MAX_MESSAGE_CHARS = 4000
MAX_TRACE_CHARS = 8000


@dataclass
class _Window:
    until: float
    room: int  # number of events that may still pass
    left_out: int = 0


class Repeats:
    """A rate limiter: `most` events per cause pass in a first window, then one per window.

    Any thread may call `take`. There is no lock, because a forked process could inherit a held
    lock; at worst, two simultaneous calls let one event too many pass.
    """

    def __init__(self, clock: Callable[[], float], most: int = 1, window_s: float = WINDOW_S) -> None:
        self._clock, self._most, self._window_s = clock, most, window_s
        self._windows: dict[Hashable, _Window] = {}

    def take(self, cause: Hashable) -> int | None:
        """Return the number of suppressed events of this cause, or None to suppress this one."""
        now, window = self._clock(), self._windows.get(cause)
        if window is None or now >= window.until:
            if len(self._windows) >= MOST_CAUSES:
                self._windows.clear()
            left_out = window.left_out if window and now < window.until + self._window_s else 0  # forget old counts
            self._windows[cause] = _Window(now + self._window_s, 0 if left_out else self._most - 1)
            return left_out
        if window.room:
            window.room -= 1
            return 0
        window.left_out += 1
        return None


def counted(text: str, left_out: int) -> str:
    """Return the text, with the number of suppressed events appended if there are any."""
    return f"{text} (the last of {left_out + 1} more like it)" if left_out else text


class RepeatFilter(logging.Filter):
    """A log filter that drops repeats and truncates long lines, both of which other peers may cause.

    A cause is a line of code with the exception's class, if any; the number of causes is bounded.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._warnings, self._news = Repeats(clock, MOST_WARNINGS), Repeats(clock, MOST_NEWS)
        self._traces = Repeats(clock, window_s=TRACE_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record; include a stack trace once an hour per cause."""
        failure = record.exc_info[1] if record.exc_info else None
        repeats = self._news if record.levelno <= logging.INFO else self._warnings
        cause = record.pathname, record.lineno, type(failure)
        left_out = repeats.take(cause)
        if left_out is None:
            return False
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # the handler will report wrong arguments
            return True
        message = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}..."
        record.msg, record.args = counted(message, left_out), ()
        if failure is not None:
            record.exc_text = _described(failure, with_trace=self._traces.take(cause) is not None)
        return True


def _described(failure: BaseException, with_trace: bool) -> str:
    """Return an exception's text, shortened in the middle, or its class name if formatting fails."""
    try:
        text = "".join(format_exception(failure) if with_trace else format_exception_only(failure)).rstrip()
    except Exception:  # noqa: BLE001  # a log filter must not raise
        return type(failure).__name__
    half = MAX_TRACE_CHARS // 2
    return text if len(text) <= MAX_TRACE_CHARS else f"{text[:half]}\n...\n{text[-half:]}"
