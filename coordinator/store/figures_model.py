"""The table of what the keeper counts of its rounds and peers, for the metrics."""

from __future__ import annotations

from sqlalchemy import Float, Integer, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class SwarmFigures(Base):
    """The keeper's counts since it started, one row; see `coordinator.figures`."""

    __tablename__ = "swarm_figures"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rounds_failed: Mapped[int] = mapped_column(Integer)
    rounds_by_duration: Mapped[str] = mapped_column(Text)  # JSON list: those that succeeded, by `BOUNDS_S`
    rounds_seconds: Mapped[float] = mapped_column(Float)  # that those took
    census: Mapped[str] = mapped_column(Text)  # JSON list of [role, reachable, peers]
