"""The table of what members and the operator want about names, beside what members are called."""

from __future__ import annotations

from sqlalchemy import Boolean, Float, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class Naming(Base):
    """Whether the public sees a name at all; without a row, it does."""

    __tablename__ = "namings"

    member_id: Mapped[int] = mapped_column(ForeignKey("members.id"), primary_key=True, autoincrement=False)
    anonymous: Mapped[bool] = mapped_column(Boolean, default=False)  # as the member wants it
    hidden_at: Mapped[float | None] = mapped_column(Float)  # by the operator; null: not hidden
