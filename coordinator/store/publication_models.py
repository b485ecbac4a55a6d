"""The tables of what was published where, and of who is not to be named there."""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Publication(Base):
    """How far one checkpoint has come at one place; see `coordinator.publications`."""

    __tablename__ = "publications"

    place: Mapped[str] = mapped_column(String(500), primary_key=True)  # the address in settings.yaml
    manifest_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)  # which checkpoint
    step: Mapped[int] = mapped_column(Integer)
    location: Mapped[str] = mapped_column(Text, default="")  # where it can be fetched; "": nowhere yet
    attempts: Mapped[int] = mapped_column(Integer, default=0)  # that failed
    error: Mapped[str] = mapped_column(Text, default="")  # of the last one
    published_at: Mapped[float | None] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float)


class UnnamedMember(Base):
    """Who asked not to be named in the model card."""

    __tablename__ = "unnamed_members"

    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), primary_key=True)
