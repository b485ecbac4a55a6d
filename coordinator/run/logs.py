"""Logs of the coordinator's processes, as lines of text or JSON.

No line contains a volunteer's address, a token, an invite code, a key or a password, even if an
exception quotes network input. Repeats of a line are limited to a few per minute.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from peer.runtime.redaction import FORMS
from peer.runtime.repeats import RepeatFilter

logger = logging.getLogger(__name__)
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVELS = {  # keyed by number, because some libraries rename levels
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_ADDRESSES = (
    re.compile(rf"(?<![\w.]){_OCTET}(?:\.{_OCTET}){{3}}(?![\w.]\d)"),
    re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:)(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])"),
)
_NOWHERE = frozenset({"127.0.0.1", "0.0.0.0", "::", "::1"})  # noqa: S104  # only compared, never bound
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}:\d{2}")
_session: ContextVar[str] = ContextVar("session", default="")


class LogFormat(str, Enum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class LogStyle:
    """The format of all processes' logs, and the hosts that may appear in them."""

    format: LogFormat = LogFormat.TEXT
    run: str = ""
    own_hosts: frozenset[str] = frozenset()  # the run's own hosts, which are not redacted


@contextmanager
def about_session(session_id: str) -> Iterator[None]:
    """Add the session to log lines of the block and of threads started by `asyncio.to_thread`."""
    token = _session.set(session_id)
    try:
        yield
    finally:
        _session.reset(token)


def redacted(text: str, spared: frozenset[str] = frozenset()) -> str:
    """Return the text without secrets and without addresses, except addresses in `spared`."""
    for kind, form in FORMS.items():
        text = form.sub(f"<{kind}>", text)
    for form in _ADDRESSES:
        text = form.sub(lambda match: match[0] if _is_harmless(match[0], spared) else "<address>", text)
    return text


def _is_harmless(found: str, spared: frozenset[str]) -> bool:
    return found in spared or found in _NOWHERE or _TIME_OF_DAY.fullmatch(found) is not None


def shorten_database_failure(record: logging.LogRecord) -> bool:
    """Shorten the record of a common database failure to one sentence without a traceback."""
    failure = record.exc_info[1] if record.exc_info else None
    if failure is None:
        return True
    from coordinator.store.engine import trouble  # imported only on failure, because it imports SQLAlchemy

    if (found := trouble(failure)) is not None:
        record.msg, record.args = f"{record.getMessage()}: {found}", ()
        record.exc_info = record.exc_text = None
    return True


class TextLines(logging.Formatter):
    """A formatter that writes each record as text."""

    def __init__(self, style: LogStyle) -> None:
        super().__init__(TEXT_FORMAT)
        self._own_hosts = style.own_hosts

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, followed by an exception's traceback if any."""
        return redacted(super().format(record), self._own_hosts)


class JsonLines(logging.Formatter):
    """A formatter that writes each record as a JSON object, with run, session and step if known."""

    def __init__(self, process: str, style: LogStyle, step: Callable[[], int | None] = lambda: None) -> None:
        super().__init__()
        self._process, self._run_style = process, style
        self.step = step  # returns the current step, or None if unknown

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object; `exception` is the traceback, if any."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": LEVELS.get(record.levelno) or record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage(), self._run_style.own_hosts),
            "process": self._process,
        }
        step = getattr(record, "step", self.step())
        known = {"run": self._run_style.run or None, "session": _session.get() or None, "step": step}
        line |= {name: value for name, value in known.items() if value is not None}
        if record.exc_info:
            trace = record.exc_text or self.formatException(record.exc_info)
            line["exception"] = redacted(trace, self._run_style.own_hosts)
        return json.dumps(line, ensure_ascii=False)


def log_to_stderr(process: str, style: LogStyle = LogStyle()) -> None:
    """Log to standard error with few repeats; omit INFO records of Alembic and httpx2.

    At level INFO, Alembic logs each table, and httpx2 each URL, including secret webhook URLs.
    """
    handler = logging.StreamHandler()
    handler.addFilter(shorten_database_failure)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(JsonLines(process, style) if style.format is LogFormat.JSON else TextLines(style))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for library in ("alembic", "httpx2"):
        logging.getLogger(library).setLevel(logging.WARNING)


def log_the_unforeseen() -> None:
    """Also log Python warnings and uncaught exceptions in threads."""

    def tell(failure: threading.ExceptHookArgs) -> None:
        logger.error("a thread failed", exc_info=failure.exc_value)

    logging.captureWarnings(True)
    threading.excepthook = tell


def tell_step(step: Callable[[], int | None]) -> None:
    """Add the result of `step()` to all later JSON log lines of this process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter.step = step
