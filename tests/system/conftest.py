"""A fresh run, or a fresh swarm, of which no process is left after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Site
from tests.support.swarms import SwarmFactory


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A fresh run."""
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[SwarmFactory]:
    """An empty swarm."""
    factory = SwarmFactory(tmp_path)
    yield factory
    factory.close()
