"""Logs of the coordinator's processes: lines for people, or one JSON object a line for programs.

Either way no line has a volunteer's address, a token, an invite code, a key or a password in it, whoever wrote it: an
exception's text may quote what came over the network. A line that repeats is told once and then counted.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from peer.runtime.redaction import FORMS

logger = logging.getLogger(__name__)
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVELS = {  # for programs; libraries give them other names
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
FACTS = ("run", "session", "step")  # beside what every line has, where they are known
REPEAT_AFTER_S = 60.0  # the same line again, with how many were left out
MOST_LINES = 512  # that are remembered
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_ADDRESSES = (
    re.compile(rf"(?<![\w.]){_OCTET}(?:\.{_OCTET}){{3}}(?![\w.]\d)"),
    re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:)(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])"),
)
_NOWHERE = frozenset({"127.0.0.1", "0.0.0.0", "::", "::1"})  # noqa: S104  # not listened on
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}:\d{2}")
_session: ContextVar[str] = ContextVar("session", default="")


class LogFormat(str, Enum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class LogStyle:
    """The style of a process's log; each part that is started gets it."""

    format: LogFormat = LogFormat.TEXT
    run: str = ""
    own_hosts: frozenset[str] = frozenset()  # the run's, which volunteers know anyway


@contextmanager
def about_session(session_id: str) -> Iterator[None]:
    """Mark the block's log lines with this session, also those of threads that `asyncio.to_thread` starts in it."""
    token = _session.set(session_id)
    try:
        yield
    finally:
        _session.reset(token)


def redacted(text: str, spared: frozenset[str] = frozenset()) -> str:
    """The text without secrets, and without addresses but those that are spared."""
    for kind, form in FORMS.items():
        text = form.sub(f"<{kind}>", text)
    for form in _ADDRESSES:
        text = form.sub(lambda match: match[0] if _is_harmless(match[0], spared) else "<address>", text)
    return text


def _is_harmless(found: str, spared: frozenset[str]) -> bool:
    return found in spared or found in _NOWHERE or _TIME_OF_DAY.fullmatch(found) is not None


class Repetitions(logging.Filter):
    """Lets a line pass once a minute: what polls and requests say of one trouble would fill a disk.

    A database's failure that an operator can mend is told in one sentence, without its trace.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: OrderedDict[tuple[object, ...], _Told] = OrderedDict()  # the latest last
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a line pass once a minute; the next one of its kind says how many were left out."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit the line: the handler tells of them
            return True
        failure = record.exc_info[1] if record.exc_info else None
        if (found := _trouble(failure)) is not None:
            message, failure = f"{message}: {found}", None
            record.exc_info = record.exc_text = None
        left_out = self._left_out((record.name, record.levelno, message, repr(failure)))
        if left_out:
            message += f" (and {left_out} times more since this was last said)"
        record.msg, record.args = message, ()
        return left_out is not None

    def _left_out(self, line: tuple[object, ...]) -> int | None:
        """Count the repetitions of a line since it was logged; None while that is too recent to log it again."""
        now = self._clock()
        with self._lock:
            before = self._told.get(line)
            if before is not None and now - before.at < REPEAT_AFTER_S:
                before.left_out += 1
                return None
            self._told[line] = _Told(now)
            self._told.move_to_end(line)
            if len(self._told) > MOST_LINES:
                self._told.popitem(last=False)
            return 0 if before is None else before.left_out


def _trouble(failure: BaseException | None) -> Exception | None:
    """The sentence for an operator, if the database has failed; where nothing fails its library is not loaded."""
    if failure is None:
        return None
    from coordinator.store.engine import trouble

    return trouble(failure)


@dataclass
class _Told:
    """The time at which a line was logged, and its repetitions since."""

    at: float
    left_out: int = 0


class TextLines(logging.Formatter):
    """A line for people."""

    def __init__(self, style: LogStyle) -> None:
        super().__init__(TEXT_FORMAT)
        self._own_hosts = style.own_hosts

    def format(self, record: logging.LogRecord) -> str:
        """The line, or several where it tells of an exception."""
        return redacted(super().format(record), self._own_hosts)


@dataclass(eq=False)
class JsonLines(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, `process`, and of `FACTS` what is known."""

    process: str
    style: LogStyle
    step: Callable[[], int | None] = field(default=lambda: None)  # the process's own, at this moment

    def __post_init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """The object; an exception's trace stands in `exception`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": LEVELS.get(record.levelno) or record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage(), self.style.own_hosts),
            "process": self.process,
        }
        known = {"run": self.style.run or None, "session": _session.get() or None, "step": self.step()}
        for name in FACTS:
            value = getattr(record, name, known[name])
            line |= {} if value is None else {name: value}
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info), self.style.own_hosts)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(process: str, style: LogStyle = LogStyle()) -> None:
    """Log to standard error, with repeated lines left out; of some libraries only warnings.

    Alembic would name each table, and httpx2 each address that it asks: a webhook's is a secret.
    """
    handler = logging.StreamHandler()
    handler.addFilter(Repetitions())
    handler.setFormatter(JsonLines(process, style) if style.format is LogFormat.JSON else TextLines(style))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for library in ("alembic", "httpx2"):
        logging.getLogger(library).setLevel(logging.WARNING)


def log_the_unforeseen() -> None:
    """Log Python's warnings and threads' uncaught errors from now on, too."""

    def tell(failure: threading.ExceptHookArgs) -> None:
        logger.error("a thread failed", exc_info=failure.exc_value)

    logging.captureWarnings(True)
    threading.excepthook = tell


def tell_step(step: Callable[[], int | None]) -> None:
    """Name the step in this process's JSON lines from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter.step = step
