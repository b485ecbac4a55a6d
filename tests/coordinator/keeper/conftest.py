"""The database of the keeper's tests."""

from __future__ import annotations

import pytest

from coordinator.store.engine import Database
from tests.support.ledgers import keeper_at
from tests.support.stores import Kind


@pytest.fixture
def store_kind() -> Kind:
    """SQLite only: the tests of ledger and store run on both databases."""
    return "sqlite"


@pytest.fixture
def database(database: Database) -> Database:
    """A run's database with what the keeper before has seen, elsewhere."""
    keeper_at(database, 2, 0.0)
    return database
