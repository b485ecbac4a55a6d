"""The base class of all tables."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """The declarative base of all tables; a test compares its metadata with the migrations."""
