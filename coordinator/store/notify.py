"""Notification of all processes of a run about changes in the database, by PostgreSQL's NOTIFY.

A notification is delivered when the transaction commits, and contains only a topic. A process that
misses it polls within a second, as all do on SQLite. Frequent writes (devices' reported states)
send no notification: they would wake all replicas for nothing.
"""

from __future__ import annotations

from enum import Enum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.store.locks import is_postgresql

CHANNEL = "manyhands"


class Topic(str, Enum):
    """The topic of a notification."""

    REVOCATIONS = "revocations"  # the revocation list
    SESSIONS = "sessions"  # a device has opened a new session
    PROGRESS = "progress"  # data of the dashboards: steps, the keeper's view, checkpoints, validations


def tell(session: Session, topic: Topic) -> None:
    """Notify all listeners once this transaction commits; repeated calls send one notification."""
    if is_postgresql(session):
        session.execute(select(func.pg_notify(CHANNEL, topic.value)))
