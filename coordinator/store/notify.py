"""Telling all processes of a run that something in the database has changed: PostgreSQL's NOTIFY.

It is delivered when the transaction commits, and says only where to look: whoever misses it finds the change at the
next look, a second later at most, which is also all that SQLite has. What everybody writes all the time (what each
device says of itself) is not told: it would wake all replicas for nothing.
"""

from __future__ import annotations

from enum import Enum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.store.locks import is_postgresql

CHANNEL = "manyhands"


class Topic(str, Enum):
    """What has changed."""

    REVOCATIONS = "revocations"  # the list of who is shut out
    SESSIONS = "sessions"  # a device has opened another session
    PROGRESS = "progress"  # what dashboards show: steps, the keeper's view, checkpoints, validations


def tell(session: Session, topic: Topic) -> None:
    """Let all listeners know when this transaction commits; told twice in one transaction, it arrives once."""
    if is_postgresql(session):
        session.execute(select(func.pg_notify(CHANNEL, topic.value)))
