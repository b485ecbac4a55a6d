"""Eras: which reports still count after the swarm returned to a checkpoint and repeated steps.

Each return begins an era. Steps of earlier eras count up to the checkpoint's step. Their later
steps are undone, however late the reports arrive.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.store.models import Era


def current_era(session: Session) -> int:
    """Return the newest era; 0 until the swarm first returns to a checkpoint."""
    return session.scalar(select(func.max(Era.era))) or 0


def last_counting_step(session: Session, era: int) -> int | None:
    """Return the last step of `era` that no later era undid; None for the current era."""
    return session.scalar(select(func.min(Era.after_step)).where(Era.era > era))


def begin_era(session: Session, after_step: int, now: float) -> int:
    """Begin the era that repeats everything after `after_step`; returns its number."""
    era = current_era(session) + 1
    session.add(Era(era=era, after_step=after_step, began_at=now))
    session.flush()
    return era
