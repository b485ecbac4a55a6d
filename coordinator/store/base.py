"""The base class of all tables."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """Base class of all tables; a test compares them with the tables of the migrations."""
