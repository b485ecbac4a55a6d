"""The permanent audit log of administrative actions and their actors.

Entries change only when `coordinator.members.erasure` replaces a member's name with a pseudonym.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import or_, select, true
from sqlalchemy.orm import Session

from auth.errors import ManyhandsError
from coordinator.store.engine import Database
from coordinator.store.models import AuditEntry

MAX_DETAIL_CHARS = 500


@dataclass(frozen=True)
class AuditRow:
    """An entry of the audit log."""

    at: float  # Unix time in seconds
    actor: str  # `os:NAME` (a command), `web:NAME` (a web administrator) or `run:...` (automatic)
    act: str
    subject: str  # affected member, entry or alarm
    detail: str


def os_actor() -> str:
    """Return the OS user running this command, regardless of environment variables."""
    uid = os.getuid()
    try:
        return f"os:{pwd.getpwuid(uid).pw_name}"
    except KeyError:  # a container's user may have no name
        return f"os:uid {uid}"


class AuditLog:
    """A writer of audit entries for one actor."""

    def __init__(self, database: Database, actor: str, clock: Callable[[], float] = time.time) -> None:
        self._database, self._actor, self._clock = database, actor, clock

    @contextmanager
    def act(self, act: str, subject: str = "", detail: str = "") -> Iterator[None]:
        """Record the action performed in the block, or the reason for its refusal."""
        try:
            yield
        except ManyhandsError as error:
            self.record(act, subject, f"refused: {error}")
            raise
        self.record(act, subject, detail)

    def record(self, act: str, subject: str = "", detail: str = "") -> None:
        """Record an action that has been performed."""
        with self._database.begin() as session:
            add_entry(session, self._actor, act, subject, detail, self._clock())


def add_entry(session: Session, actor: str, act: str, subject: str, detail: str, now: float) -> None:
    """Record an action in the transaction that performs it."""
    session.add(AuditEntry(at=now, actor=actor, act=act, subject=subject[:128], detail=detail[:MAX_DETAIL_CHARS]))


def audit_log(database: Database, limit: int, offset: int = 0, search: str = "") -> list[AuditRow]:
    """Return up to `limit` entries that contain `search`, newest first, starting at `offset`."""
    columns = (AuditEntry.actor, AuditEntry.act, AuditEntry.subject, AuditEntry.detail)
    query = (
        select(AuditEntry)
        .where(or_(*(column.icontains(search, autoescape=True) for column in columns)) if search else true())
        .order_by(AuditEntry.id.desc())
        .offset(offset)
        .limit(limit)
    )
    with database() as session:
        return [AuditRow(row.at, row.actor, row.act, row.subject, row.detail) for row in session.scalars(query)]
