"""The tables of what tells whether the model still learns, and of the alarms that are raised by it."""

from __future__ import annotations

from sqlalchemy import Float, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class UpdateNorm(Base):
    """How far one global step moved the parameters, as the keeper saw it."""

    __tablename__ = "update_norms"

    step: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    norm: Mapped[float] = mapped_column(Float)


class UnigramBaseline(Base):
    """What knowing no more than how frequent each token is would lose on a validation set."""

    __tablename__ = "unigram_baselines"

    set_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    loss: Mapped[float] = mapped_column(Float)  # nats a predicted token


class RaisedAlarm(Base):
    """An alarm that holds now, one of its kind."""

    __tablename__ = "alarms"

    kind: Mapped[str] = mapped_column(String(32), primary_key=True)
    step: Mapped[int] = mapped_column(Integer)  # with which it began
    detail: Mapped[str] = mapped_column(Text)
    raised_at: Mapped[float] = mapped_column(Float)
