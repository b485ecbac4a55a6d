"""Whose database this is."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.store.base import Base


class DatabaseOwner(Base):
    """The one run whose rows these are, by its name and both of its keys; see `coordinator.database_owner`."""

    __tablename__ = "database_owner"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run: Mapped[str] = mapped_column(String(64))
    certificate_sha256: Mapped[str] = mapped_column(String(64))  # as in the join link
    authority_key: Mapped[str] = mapped_column(String(64))  # public, hexadecimal
