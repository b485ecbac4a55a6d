"""Notifications to all processes of a run about database changes, sent with PostgreSQL's NOTIFY.

A notification contains only a topic and is delivered on commit. Processes also poll every second,
in case a notification is lost; on SQLite, polling is the only mechanism. Frequent writes, such as
device states, send no notifications, because every notification wakes all replicas.
"""

from __future__ import annotations

from enum import Enum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.store.locks import is_postgresql

CHANNEL = "manyhands"


class Topic(str, Enum):
    """The topic of a notification."""

    REVOCATIONS = "revocations"  # the revocation list has changed
    SESSIONS = "sessions"  # a device has opened a session
    PROGRESS = "progress"  # dashboard data has changed: steps, keeper's view, checkpoints, validations, alarms


def tell(session: Session, topic: Topic) -> None:
    """Notify all listeners when the transaction commits; duplicates are merged."""
    if is_postgresql(session):
        session.execute(select(func.pg_notify(CHANNEL, topic.value)))
