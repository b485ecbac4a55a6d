"""The base class of all tables."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """Base of all tables; the migrations in `migrations/` must match them (a test compares)."""
