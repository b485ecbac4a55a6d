"""Notification of all processes of a run that something in the database has changed: PostgreSQL's NOTIFY.

A notification is delivered when the transaction commits, and says only where to look: a process that misses it finds
the change at its next look, a second later at most, as all processes do on SQLite. Frequent writes (each device's
reports on itself) are not notified: they would wake all replicas for nothing.
"""

from __future__ import annotations

from enum import Enum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.store.locks import is_postgresql

CHANNEL = "manyhands"


class Topic(str, Enum):
    """The subject of a change."""

    REVOCATIONS = "revocations"  # the list of who is shut out
    SESSIONS = "sessions"  # a device has opened another session
    PROGRESS = "progress"  # what dashboards show: steps, the keeper's view, checkpoints, validations


def tell(session: Session, topic: Topic) -> None:
    """Let all listeners know when this transaction commits; told twice in one transaction, it arrives once."""
    if is_postgresql(session):
        session.execute(select(func.pg_notify(CHANNEL, topic.value)))
