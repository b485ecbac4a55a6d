"""Stored evaluations of checkpoints on held-out samples, written by the validator."""

from __future__ import annotations

import math
import threading
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from coordinator.ledger.recorded_checkpoints import CheckpointRow, checkpoint_row
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from coordinator.store.eras import last_counting_step
from coordinator.store.locks import Lock, beside_others
from coordinator.store.models import Checkpoint, Validation
from coordinator.store.notify import Topic, tell

POLL_S = 1.0  # interval at which the validator checks for new checkpoints


@dataclass(frozen=True)
class ValidationRow:
    """The evaluation of a checkpoint, as stored in `coordinator.store.models.Validation`."""

    step: int
    era: int
    manifest_sha256: str
    set_sha256: str
    sequence_length: int  # tokens
    samples: int
    predicted_tokens: int
    mlm_loss: float | None
    sop_loss: float | None
    accuracy: float
    sop_accuracy: float | None
    elapsed_s: float
    evaluated_at: float  # Unix time in seconds
    detection_loss: float | None = None  # weighted by `discriminator_weight`; None unless the model is ELECTRA
    detection_accuracy: float | None = None
    detection_f1: float | None = None

    @property
    def loss(self) -> float | None:
        """The total loss of the objective, or None if it was not finite."""
        if self.mlm_loss is None:
            return None
        return self.mlm_loss + (self.sop_loss or 0.0) + (self.detection_loss or 0.0)

    @property
    def perplexity(self) -> float | None:
        """The exponential of `mlm_loss`, or None if that loss is missing or its exponential overflows."""
        try:
            return None if self.mlm_loss is None else math.exp(self.mlm_loss)
        except OverflowError:
            return None

    @property
    def facts(self) -> dict[str, Any]:
        """All stored fields, plus loss and perplexity, keyed by name, for scripts."""
        return {**asdict(self), "loss": self.loss, "perplexity": self.perplexity}


def validations(database: Database) -> list[ValidationRow]:
    """Return all evaluations, ordered by step."""
    names = [field.name for field in fields(ValidationRow)]
    with database() as session:
        found = session.scalars(select(Validation).order_by(Validation.step))
        return [ValidationRow(**{name: getattr(row, name) for name in names}) for row in found]


def best_steps(database: Database) -> list[int]:
    """Return the steps evaluated on the same samples as the newest one, lowest loss first."""
    rows = validations(database)
    comparable = [(row.loss, row.step) for row in rows if row.set_sha256 == rows[-1].set_sha256]
    return [step for loss, step in sorted((loss, step) for loss, step in comparable if loss is not None)]


def pending_checkpoints(database: Database) -> list[CheckpointRow]:
    """Return the recorded checkpoints that have not been evaluated, newest first."""
    same = and_(Validation.step == Checkpoint.step, Validation.manifest_sha256 == Checkpoint.manifest_sha256)
    waiting = select(Checkpoint).outerjoin(Validation, same).where(Validation.step.is_(None))
    with database() as session:
        return [checkpoint_row(row) for row in session.scalars(waiting.order_by(Checkpoint.step.desc()))]


def await_work(directory: RunDirectory, stop: threading.Event) -> bool:
    """Wait until a checkpoint is pending or samples must be drawn; return False if stopped.

    The validator imports torch only after this wait.
    """
    engine = open_engine(directory.database_url)
    database = Database(engine)
    try:
        while directory.validation_dir.exists() and not pending_checkpoints(database):
            if stop.wait(POLL_S):
                return bool(pending_checkpoints(database))  # the keeper may have written a last checkpoint
    finally:
        engine.dispose()
    return True


def record_validation(database: Database, row: ValidationRow) -> bool:
    """Store an evaluation, replacing any earlier one; return False if its step was undone."""

    def enter(session: Session) -> bool:
        beside_others(session, Lock.ERA)
        undone_after = last_counting_step(session, row.era)
        if undone_after is not None and row.step > undone_after:
            return False
        session.merge(Validation(**asdict(row)))
        tell(session, Topic.PROGRESS)
        return True

    return database.transact(enter)
