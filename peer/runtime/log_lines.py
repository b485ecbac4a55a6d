"""Folding of a log's lines: for each cause one line a minute with a count, and a bounded number of bytes an hour.

A cause is a logger's template at one level, or an exception's class and place. Its first lines are told as they are,
as long as they differ; then it is one line a minute, with the newest text and how many there were. `Folding` and
`Budget` decide and are given the time; `FoldingHandler` writes. All processes of coordinator and peer log by it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from traceback import format_exception_only, walk_tb
from typing import Generic, NamedTuple, TextIO, TypeVar

WINDOW_S = 60.0
MOST_TEXTS = 5  # different ones of a cause that are told within a window
MOST_NEWS = 30  # the same for information: a fast run's steps
MOST_CAUSES = 512  # that are remembered
BYTES_AN_HOUR = 90_000  # of a process: the coordinator's eight and the keeper's three forks come to a megabyte
BURST_BYTES = 30_000  # of them at once
KEPT_BYTES = 10_000  # of the burst, which are no ordinary line's: they are for causes that are new
KEPT_FOR_COUNTS_BYTES = 2_000  # of these
MAX_MESSAGE_CHARS = 4000
MAX_TRACE_CHARS = 8000
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\w*\d\w*")  # what differs between two lines of one cause
_MAX_TEMPLATE_CHARS = 200
Line = TypeVar("Line")


class Telling(Enum):
    """The treatment of a line: written as the first or a further one of its cause, or left out."""

    FIRST = auto()  # of a cause that was silent
    MORE = auto()
    LEFT_OUT = auto()


@dataclass
class _Cause(Generic[Line]):
    """The lines of a cause within its present window."""

    newest: Line
    until: float
    texts: set[int] = field(default_factory=set)  # hashes of those told
    repeats: bool = False  # lines of it were left out in the window before
    left_out: int = 0


class Folding(Generic[Line]):
    """Lines by their causes. The caller asks `due` before each line, and `rest` at the end."""

    def __init__(self) -> None:
        self._causes: OrderedDict[Hashable, _Cause[Line]] = OrderedDict()  # those whose window ends first come first
        self._forgotten: list[tuple[Line, int]] = []
        self._left_out = 0

    def take(self, now: float, cause: Hashable, text: str, line: Line, most_texts: int = MOST_TEXTS) -> Telling:
        """Decide on a line, and count it if it is left out."""
        known = self._causes.get(cause)
        if known is None:
            self._causes[cause] = _Cause(line, now + WINDOW_S, {hash(text)})
            if len(self._causes) > MOST_CAUSES:
                oldest = self._causes.popitem(last=False)[1]
                self._forgotten += [(oldest.newest, oldest.left_out)] if oldest.left_out else []
            return Telling.FIRST
        known.newest = line
        if not known.repeats and hash(text) not in known.texts and len(known.texts) < most_texts:
            known.texts.add(hash(text))
            return Telling.MORE
        known.left_out += 1
        self._left_out += 1
        return Telling.LEFT_OUT

    def due(self, now: float) -> list[tuple[Line, int]]:
        """Return the newest line and the number left out of each cause whose window has ended; a silent one is over."""
        found, self._forgotten = self._forgotten, []
        while self._causes and (oldest := next(iter(self._causes.values()))).until <= now:
            cause, _ = self._causes.popitem(last=False)
            if oldest.left_out:
                found.append((oldest.newest, oldest.left_out))
                self._causes[cause] = _Cause(oldest.newest, now + WINDOW_S, repeats=True)
        self._left_out -= sum(left_out for _, left_out in found)
        return found

    def rest(self) -> list[tuple[Line, int]]:
        """Return all that was left out and not told yet, and begin anew."""
        counts = [(cause.newest, cause.left_out) for cause in self._causes.values() if cause.left_out]
        found = [*self._forgotten, *counts]
        self._causes, self._forgotten, self._left_out = OrderedDict(), [], 0
        return found

    @property
    def waits(self) -> bool:
        """Return whether a count of left-out lines is still to be written."""
        return self._left_out > 0


class Budget:
    """The bytes that a process may still log: a bucket that fills evenly, and the lines that found it empty."""

    def __init__(self, now: float) -> None:
        self._bytes, self._at = float(BURST_BYTES), now
        self.left_out = 0  # lines since they were last told

    def spend(self, now: float, size_bytes: int, kept_bytes: int) -> bool:
        """Return whether a line may be written that leaves `kept_bytes` to more important ones; count it if not."""
        grown = self._bytes + (now - self._at) * (BYTES_AN_HOUR - BURST_BYTES) / 3600
        self._bytes, self._at = min(float(BURST_BYTES), grown), now
        if size_bytes > self._bytes - kept_bytes:
            self.left_out += 1
            return False
        self._bytes -= size_bytes
        return True


def template_of(text: str) -> str:
    """A line without numbers, identifiers and quotations, by which others of its cause are known."""
    return _VARIABLE.sub("#", text[: 4 * _MAX_TEMPLATE_CHARS])[:_MAX_TEMPLATE_CHARS]


def counted(text: str, left_out: int) -> str:
    """A text with the number of lines like it that were left out."""
    return f"{text} (the last of {left_out} more like it)" if left_out > 1 else text


class _Told(NamedTuple):
    """What is kept of a record."""

    logger: str
    level: int
    message: str


class FoldingHandler(logging.StreamHandler[TextIO]):
    """Writes a process's log; a fork counts for itself. At the end of the process the last counts are told."""

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__(stream)
        self._clock, self._call_later = clock, call_later or _call_later
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._folding: Folding[_Told] = Folding()
        self._budget = Budget(self._clock())
        self._budget_told_at = float("-inf")
        self._is_called = False  # later, to tell counts

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        if self._pid != os.getpid():
            self._begin()
        now = self._clock()
        self._tell_counts(now)
        cause, message, text = _known_by(record)
        most_texts = MOST_TEXTS if record.levelno > logging.INFO else MOST_NEWS
        telling = self._folding.take(now, cause, text, _Told(record.name, record.levelno, message), most_texts)
        if telling is not Telling.LEFT_OUT:
            self._write(record, now, KEPT_FOR_COUNTS_BYTES if telling is Telling.FIRST else KEPT_BYTES)
        self._be_called()

    def close(self) -> None:
        """Tell what was left out until now."""
        self.acquire()
        try:
            if self._pid == os.getpid():
                now = self._clock()
                self._tell(self._folding.rest(), now)
                self._tell_budget(now)
        finally:
            self.release()
        super().close()

    def _tell_counts(self, now: float) -> None:
        self._tell(self._folding.due(now), now)
        if now - self._budget_told_at >= WINDOW_S:
            self._tell_budget(now)

    def _tell(self, counts: list[tuple[_Told, int]], now: float) -> None:
        for line, left_out in counts:
            self._write(
                _record(line.logger, line.level, counted(line.message, left_out)), now, KEPT_FOR_COUNTS_BYTES // 2
            )

    def _tell_budget(self, now: float) -> None:
        left_out = self._budget.left_out
        if left_out:
            text = f"{left_out} lines were left out: this process logs at most {BYTES_AN_HOUR // 1000} KB an hour"
            self._budget.left_out = 0
            if self._write(_record(__name__, logging.WARNING, text), now, 0):
                self._budget_told_at = now
            else:
                self._budget.left_out = left_out

    def _write(self, record: logging.LogRecord, now: float, kept_bytes: int) -> bool:
        try:
            _cut(record, self.formatter or logging.Formatter())
            line = self.format(record) + self.terminator
            if not self._budget.spend(now, len(line.encode(errors="replace")), kept_bytes):
                return False
            self.stream.write(line)
            self.flush()
        except Exception:  # noqa: BLE001 - as every handler does: who logs must not fail
            self.handleError(record)
        return True

    def _be_called(self) -> None:
        if not self._is_called and (self._budget.left_out or self._folding.waits):
            self._is_called = True
            with suppress(RuntimeError):  # the interpreter ends: `close` comes
                self._call_later(WINDOW_S, self._on_call)

    def _on_call(self) -> None:
        self.acquire()
        try:
            self._is_called = False
            self._tell_counts(self._clock())
            self._be_called()
        finally:
            self.release()


def _known_by(record: logging.LogRecord) -> tuple[Hashable, str, str]:
    """The record's cause, its message, and the text by which it is told from others of its cause."""
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit the line: writing it tells of them
        message = str(record.msg)
    failure = record.exc_info[1] if record.exc_info else None
    place, told = None, [message]
    if failure is not None:
        told += format_exception_only(failure)  # not its `repr`, which may fail itself
        frames = list(walk_tb(failure.__traceback__))
        where = (frames[-1][0].f_code.co_filename, frames[-1][1]) if frames else None
        place = (type(failure).__qualname__, where)
    written = str(record.msg)
    template = template_of(written if any(map(str.isalpha, re.sub(r"%\S", "", written))) else message)
    return (record.name, record.levelno, template, place), message[:MAX_MESSAGE_CHARS], "\n".join(told)


def _cut(record: logging.LogRecord, formatter: logging.Formatter) -> None:
    """Shorten what another has made long: a message, and an exception's trace in the middle."""
    message = record.getMessage()
    if len(message) > MAX_MESSAGE_CHARS:
        record.msg, record.args = message[:MAX_MESSAGE_CHARS] + "...", ()
    if record.exc_info and not record.exc_text:
        trace, half = formatter.formatException(record.exc_info), MAX_TRACE_CHARS // 2
        record.exc_text = trace if len(trace) <= MAX_TRACE_CHARS else f"{trace[:half]}\n...\n{trace[-half:]}"


def _record(logger: str, level: int, message: str) -> logging.LogRecord:
    record = logging.LogRecord(logger, level, __file__, 0, message, (), None)
    record.session = record.step = None  # it is of many
    return record


def _call_later(delay_s: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, action)
    timer.daemon = True
    timer.start()
