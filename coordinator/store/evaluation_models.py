"""The tables of what downstream tasks said of checkpoints, and of who may report it."""

from __future__ import annotations

from sqlalchemy import Float, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Evaluation(Base):
    """One task on one checkpoint; see `coordinator.evaluations`."""

    __tablename__ = "evaluations"

    manifest_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)  # which checkpoint
    task: Mapped[str] = mapped_column(String(40), primary_key=True)
    step: Mapped[int] = mapped_column(Integer)
    evaluator: Mapped[str] = mapped_column(String(40))  # who reported it
    task_sha256: Mapped[str] = mapped_column(String(64))  # data and recipe: what can be compared
    result: Mapped[str] = mapped_column(Text)  # JSON, as `coordinator.evaluate.results` writes it
    evaluated_at: Mapped[float] = mapped_column(Float)


class AllowedEvaluator(Base):
    """An evaluator on another machine, by its key: whatever this signs is taken."""

    __tablename__ = "evaluators"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)  # Ed25519, raw
    added_at: Mapped[float] = mapped_column(Float)
