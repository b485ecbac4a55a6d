"""A coordinator, a member of its run, and agents of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from peer.control.client import ControlClient
    from tests.support.control_plane import Member, TestCoordinator
    from tests.support.stays import AgentWith


@pytest_asyncio.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[TestCoordinator]:
    """A control plane in this process."""
    from tests.support.control_plane import serving

    async with serving(tmp_path) as served:
        yield served


@pytest_asyncio.fixture
async def client(coordinator: TestCoordinator) -> AsyncIterator[ControlClient]:
    """A peer's connection to the coordinator."""
    from tests.support.control_plane import connected

    async with connected(coordinator) as made:
        yield made


@pytest_asyncio.fixture
async def member(coordinator: TestCoordinator, tmp_path: Path) -> AsyncIterator[Member]:
    """A member whose session has not started yet."""
    from tests.support.control_plane import joined

    async with joined(coordinator, tmp_path) as made:
        yield made


@pytest.fixture
def agent_with(coordinator: TestCoordinator, tmp_path: Path) -> AgentWith:
    """Make an agent with this stand-in for its worker, with a fresh invite by default; its run has a keeper."""
    from tests.support.agents import make_agent

    return partial(make_agent, coordinator, tmp_path / "ada")
