"""Repeated events: the first few of a cause in a minute are told, then one a minute, with a count.

All processes of coordinator and peer log through `RepeatFilter`, so that a fault which repeats for days fills no disk.
The volunteer's terminal, suspicions and advice repeat themselves by the same rule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from traceback import format_exception, format_exception_only

WINDOW_S = 60.0
TRACE_S = 3600.0  # between two stack traces of a cause
MOST_WARNINGS = 5  # of a cause that are told within a window
MOST_NEWS = 30  # the same for information: a fast run's steps
MOST_CAUSES = 10_000  # that are remembered
MAX_MESSAGE_CHARS = 4000
MAX_TRACE_CHARS = 8000


@dataclass
class _Window:
    until: float
    room: int  # events that may still be told
    left_out: int = 0


class Repeats:
    """Decides which events to tell: `most` of a cause in a window, and one in each window after a full one.

    Any thread may ask. There is no lock, which a forked process could inherit locked: two threads that ask at the same
    moment may at worst tell one event too many.
    """

    def __init__(self, clock: Callable[[], float], most: int = 1, window_s: float = WINDOW_S) -> None:
        self._clock, self._most, self._window_s = clock, most, window_s
        self._windows: dict[Hashable, _Window] = {}

    def take(self, cause: Hashable) -> int | None:
        """Return how many events of this cause were left out before this one; None: leave this one out, too."""
        now, window = self._clock(), self._windows.get(cause)
        if window is None or now >= window.until:
            if len(self._windows) >= MOST_CAUSES:
                self._windows.clear()
            left_out = window.left_out if window and now < window.until + self._window_s else 0  # no old storm's
            self._windows[cause] = _Window(now + self._window_s, 0 if left_out else self._most - 1)
            return left_out
        if window.room:
            window.room -= 1
            return 0
        window.left_out += 1
        return None


def counted(text: str, left_out: int) -> str:
    """Return the text with the number of events left out before it."""
    return f"{text} (the last of {left_out + 1} more like it)" if left_out else text


class RepeatFilter(logging.Filter):
    """Leaves out a log's repeated lines, and cuts long ones: other peers may choose their length.

    A cause is a place in the code, so there is a bounded number of them, and the class of the exception, if any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._warnings, self._news = Repeats(clock, MOST_WARNINGS), Repeats(clock, MOST_NEWS)
        self._traces = Repeats(clock, window_s=TRACE_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line; a stack trace stands in the first line of its cause in an hour."""
        failure = record.exc_info[1] if record.exc_info else None
        repeats = self._news if record.levelno <= logging.INFO else self._warnings
        cause = record.pathname, record.lineno, type(failure)
        left_out = repeats.take(cause)
        if left_out is None:
            return False
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit the line: the handler tells of them
            return True
        message = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}..."
        record.msg, record.args = counted(message, left_out), ()
        if failure is not None:
            record.exc_text = _described(failure, with_trace=self._traces.take(cause) is not None)
        return True


def _described(failure: BaseException, with_trace: bool) -> str:
    """Return an exception's text, cut in its middle; the name of its class where its attributes raise."""
    try:
        text = "".join(format_exception(failure) if with_trace else format_exception_only(failure)).rstrip()
    except Exception:  # noqa: BLE001 - a log's filter must not fail its caller, and a formatter would try the same
        return type(failure).__name__
    half = MAX_TRACE_CHARS // 2
    return text if len(text) <= MAX_TRACE_CHARS else f"{text[:half]}\n...\n{text[-half:]}"
