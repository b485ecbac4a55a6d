"""The tables behind the public page: what visitors ask the model, and which milestones were told where."""

from __future__ import annotations

from sqlalchemy import BigInteger, Float, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Question(Base):
    """A sentence for one checkpoint, and what that made of it; kept for a day. See `coordinator.questions`."""

    __tablename__ = "questions"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)  # SHA-256 of checkpoint and sentence
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    step: Mapped[int] = mapped_column(BigInteger)
    text: Mapped[str] = mapped_column(Text)
    asked_at: Mapped[float] = mapped_column(Float, index=True)
    answer: Mapped[str] = mapped_column(Text, default="")  # JSON; "": none yet, or none at all
    reason: Mapped[str] = mapped_column(Text, default="")  # why there is none
    answered_at: Mapped[float | None] = mapped_column(Float)


class Notice(Base):
    """How far the word of one milestone has come at one webhook; see `coordinator.notices`."""

    __tablename__ = "notices"

    milestone: Mapped[str] = mapped_column(String(64), primary_key=True)  # such as samples:1000000
    webhook: Mapped[str] = mapped_column(String(64), primary_key=True)  # such as discord:1a2b3c4d
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    begun_at: Mapped[float | None] = mapped_column(Float)  # of an attempt whose outcome is not known
    next_at: Mapped[float] = mapped_column(Float, default=0.0)  # not tried before
    ended: Mapped[str] = mapped_column(String(16), default="")  # coordinator.notices.Outcome; "": to be tried again
    error: Mapped[str] = mapped_column(Text, default="")  # of the last attempt
