"""Logs of the coordinator's processes: lines for people, or one JSON object a line for programs.

Either way no line has a volunteer's address, a token, an invite code, a key or a password in it, whoever wrote it: an
exception's text may quote what came over the network. A repeated line is written once a minute (`RepeatFilter`).
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from peer.runtime.redaction import FORMS
from peer.runtime.repeats import RepeatFilter

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


def shorten_database_failure(record: logging.LogRecord) -> bool:
    """A filter: tell a database's failure that an operator can mend in one sentence, without its trace."""
    failure = record.exc_info[1] if record.exc_info else None
    if failure is None:
        return True
    from coordinator.store.engine import trouble  # where nothing fails its library is not loaded

    if (found := trouble(failure)) is not None:
        record.msg, record.args = f"{record.getMessage()}: {found}", ()
        record.exc_info = record.exc_text = None
    return True


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
            trace = record.exc_text or self.formatException(record.exc_info)
            line["exception"] = redacted(trace, self.style.own_hosts)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(process: str, style: LogStyle = LogStyle()) -> None:
    """Log to standard error, with repeated lines left out; of some libraries only warnings.

    Alembic would name each table, and httpx2 each address that it asks: a webhook's is a secret.
    """
    handler = logging.StreamHandler()
    handler.addFilter(shorten_database_failure)
    handler.addFilter(RepeatFilter())
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
