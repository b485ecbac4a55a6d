"""The progress of uploads, which the publisher records for `coordinator status` and the web API."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.ledger.recorded_checkpoints import CheckpointRow, checkpoint_row
from coordinator.store.engine import Database
from coordinator.store.models import Checkpoint, Publication

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0


@dataclass(frozen=True)
class PublicationRow:
    """The progress of publishing a checkpoint to one destination."""

    place: str
    manifest_sha256: str
    step: int
    location: str  # address of the published checkpoint; "" before publication
    attempts: int  # number of failed attempts
    error: str  # error of the last attempt; "" if it succeeded
    published_at: float | None  # Unix time in seconds; None before publication
    updated_at: float


def publications(database: Database) -> list[PublicationRow]:
    """Return all publications, ordered by step and destination."""
    with database() as session:
        found = session.scalars(select(Publication).order_by(Publication.step, Publication.place))
        return [_row(each) for each in found]


def newest_at(database: Database, places: Collection[str]) -> list[PublicationRow]:
    """Return the most recently updated row for each of these destinations, if any."""
    rows = sorted(publications(database), key=lambda row: row.updated_at)
    return list({row.place: row for row in rows if row.place in places}.values())


def pending_publication(database: Database, place: str) -> tuple[CheckpointRow, PublicationRow | None] | None:
    """Return the newest publishable checkpoint and its progress, or None if none is pending.

    Older checkpoints are skipped, because they must not be published after a newer one.
    """
    with database() as session:
        newest = session.scalar(select(Checkpoint).where(Checkpoint.withheld == "").order_by(Checkpoint.step.desc()))
        if newest is None:
            return None
        row = session.get(Publication, (place, newest.manifest_sha256))
        if row is not None and row.published_at is not None:
            return None
        return checkpoint_row(newest), None if row is None else _row(row)


def record_published(database: Database, place: str, checkpoint: CheckpointRow, location: str, now: float) -> None:
    """Record that a checkpoint has been published."""

    def enter(session: Session) -> None:
        row = _get_or_add(session, place, checkpoint)
        row.location, row.error, row.published_at, row.updated_at = location, "", now, now

    database.transact(enter)


def record_failure(database: Database, place: str, checkpoint: CheckpointRow, error: str, now: float) -> int:
    """Record a failed attempt, and return the number of failed attempts so far."""

    def enter(session: Session) -> int:
        row = _get_or_add(session, place, checkpoint)
        row.attempts, row.error, row.updated_at = row.attempts + 1, error, now
        return row.attempts

    return database.transact(enter)


def is_due(row: PublicationRow | None, now: float) -> bool:
    """Return whether an attempt is due; the interval doubles after each failure, up to an hour."""
    if row is None or not row.attempts:
        return True
    return now - row.updated_at >= pause_s(row.attempts) or now < row.updated_at  # due if the clock was set back


def pause_s(attempts: int) -> float:
    """Return the delay in seconds after this number of failed attempts."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 20))


def _get_or_add(session: Session, place: str, checkpoint: CheckpointRow) -> Publication:
    row = session.get(Publication, (place, checkpoint.manifest_sha256))
    if row is None:
        row = Publication(
            place=place, manifest_sha256=checkpoint.manifest_sha256, step=checkpoint.step, attempts=0, updated_at=0.0
        )
        session.add(row)
    return row


def _row(row: Publication) -> PublicationRow:
    return PublicationRow(**{field.name: getattr(row, field.name) for field in fields(PublicationRow)})
