"""The keeper's records of verified checkpoints on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select

from coordinator.store.engine import Database
from coordinator.store.models import Checkpoint
from coordinator.store.notify import Topic, tell


@dataclass(frozen=True)
class CheckpointRow:
    """A verified checkpoint on disk."""

    step: int
    size_bytes: int
    manifest_sha256: str
    created_at: float
    withheld: str  # reason not to publish it, or "" if there is none


def record_checkpoint(
    database: Database,
    *,
    step: int,
    size_bytes: int,
    manifest_sha256: str,
    now: float,
    removed: Sequence[int] = (),
    withheld: str = "",
) -> None:
    """Record a checkpoint, with any reason not to publish it; delete the records of `removed`."""
    row = Checkpoint(
        step=step, size_bytes=size_bytes, manifest_sha256=manifest_sha256, created_at=now, withheld=withheld
    )
    with database.begin() as session:
        session.merge(row)
        session.flush()
        session.execute(delete(Checkpoint).where(Checkpoint.step.in_(list(removed))))
        tell(session, Topic.PROGRESS)


def forget_checkpoints(database: Database, steps: Sequence[int]) -> None:
    """Delete the records of the checkpoints at `steps`."""
    with database.begin() as session:
        session.execute(delete(Checkpoint).where(Checkpoint.step.in_(steps)))


def checkpoints(database: Database) -> list[CheckpointRow]:
    """Return all recorded checkpoints, newest first."""
    with database() as session:
        return [checkpoint_row(row) for row in session.scalars(select(Checkpoint).order_by(Checkpoint.step.desc()))]


def checkpoint_row(row: Checkpoint) -> CheckpointRow:
    """Copy a checkpoint's row for use outside its database session."""
    return CheckpointRow(row.step, row.size_bytes, row.manifest_sha256, row.created_at, row.withheld)
