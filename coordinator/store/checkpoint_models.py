"""Tables about checkpoints: evaluations, publications, model card opt-outs, and alarm data."""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Evaluation(Base):
    """The result of one task on one checkpoint; see `coordinator.evaluation.evaluations`."""

    __tablename__ = "evaluations"

    manifest_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)  # digest that identifies the checkpoint
    task: Mapped[str] = mapped_column(String(40), primary_key=True)
    step: Mapped[int] = mapped_column(Integer)
    evaluator: Mapped[str] = mapped_column(String(40))  # name of the evaluator that reported the result
    task_sha256: Mapped[str] = mapped_column(String(64))  # digest of data and recipe; equal for comparable results
    result: Mapped[str] = mapped_column(Text)  # JSON written by `coordinator.evaluation.tasks.results`
    evaluated_at: Mapped[float] = mapped_column(Float)


class AllowedEvaluator(Base):
    """A remote evaluator whose signed results are accepted."""

    __tablename__ = "evaluators"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)  # raw Ed25519 public key
    added_at: Mapped[float] = mapped_column(Float)


class Publication(Base):
    """The publication of a checkpoint to a destination; see `coordinator.publishing`."""

    __tablename__ = "publications"

    place: Mapped[str] = mapped_column(String(500), primary_key=True)  # the destination's address in settings.yaml
    manifest_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)  # digest that identifies the checkpoint
    step: Mapped[int] = mapped_column(Integer)
    location: Mapped[str] = mapped_column(Text, default="")  # URL of the published checkpoint; "" before publication
    attempts: Mapped[int] = mapped_column(Integer, default=0)  # number of failed attempts
    error: Mapped[str] = mapped_column(Text, default="")  # error message of the last attempt
    published_at: Mapped[float | None] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float)


class UnnamedMember(Base):
    """A member who has opted out of being named in model cards."""

    __tablename__ = "unnamed_members"

    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), primary_key=True)


class UpdateNorm(Base):
    """The norm of the parameter update in one global step, measured by the keeper."""

    __tablename__ = "update_norms"

    step: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    norm: Mapped[float] = mapped_column(Float)


class UnigramBaseline(Base):
    """The loss of a unigram model, which uses only token frequencies, on a validation set."""

    __tablename__ = "unigram_baselines"

    set_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    loss: Mapped[float] = mapped_column(Float)  # loss in nats per predicted token


class RaisedAlarm(Base):
    """An active alarm; at most one of each kind."""

    __tablename__ = "alarms"

    kind: Mapped[str] = mapped_column(String(32), primary_key=True)
    step: Mapped[int] = mapped_column(Integer)  # step at which the problem began
    detail: Mapped[str] = mapped_column(Text)
    raised_at: Mapped[float] = mapped_column(Float)
