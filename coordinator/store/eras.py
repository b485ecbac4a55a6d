"""Eras, which determine whether a report is still valid after a rewind to a checkpoint.

Each rewind starts a new era. Steps of earlier eras remain valid up to the checkpoint's step. Later
steps of earlier eras are undone, even if their reports arrive after the rewind.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.store.models import Era


def current_era(session: Session) -> int:
    """Return the current era; 0 until the first rewind to a checkpoint."""
    return session.scalar(select(func.max(Era.era))) or 0


def last_counting_step(session: Session, era: int) -> int | None:
    """Return the last step of `era` that no later era has undone; None for the current era."""
    return session.scalar(select(func.min(Era.after_step)).where(Era.era > era))


def begin_era(session: Session, after_step: int, now: float) -> int:
    """Start an era that repeats all steps after `after_step`, and return its number."""
    era = current_era(session) + 1
    session.add(Era(era=era, after_step=after_step, began_at=now))
    session.flush()
    return era
