"""The base class of all ORM models."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """The declarative base of all models; a test compares the metadata with the migrations."""
