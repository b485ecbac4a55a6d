"""Stays of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from peer.agent.agent import Agent
from tests.support.agents import Recorder
from tests.support.waiting import PATIENCE_S

AgentWith = Callable[..., tuple[Agent, Recorder]]  # of a stand-in for its worker


@asynccontextmanager
async def staying(agent: Agent) -> AsyncIterator[asyncio.Task[None]]:
    """Run an agent, which is told to leave at the end, and must leave without an error."""
    running = asyncio.create_task(agent.run())
    yield running
    agent.stop("test")
    await asyncio.wait_for(running, PATIENCE_S)
