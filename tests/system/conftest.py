"""A fresh run, or a fresh swarm, of which no process is left after the test; all their processes are forked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Site
from tests.support.swarms import SwarmFactory
from tests.support.zygote import forking_python, fresh_python


@pytest.fixture(scope="module", autouse=True)
def forked_unless_fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork Python processes, so that each is spared its imports, except in a module that says `FRESH = True`."""
    with fresh_python() if getattr(request.module, "FRESH", False) else forking_python():
        yield


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
