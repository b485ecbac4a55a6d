"""Answers to a worker's requests; one with a real control plane and a worker's stand-in in a spawned process."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from peer.agent.agent import Agent
from peer.agent.options import AgentOptions
from peer.agent.worker_requests import CheckpointWatch, LineWatch
from peer.limits.limits import Limits
from peer.limits.policy import Readings
from peer.network.traffic import Throttle
from peer.protocol import control_pb2
from peer.reporting.messages import CheckpointFetched, CheckpointWanted, LineMeasured, Notice, Ready
from tests.support import worker_mains
from tests.support.agents import Recorder
from tests.support.control_plane import KEEPER, TestCoordinator, write_status
from tests.support.stays import staying
from tests.support.waiting import eventually


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
async def test_a_worker_in_doubt_is_told_what_the_line_has_within_the_limits(
    coordinator: TestCoordinator, tmp_path: Path
) -> None:
    """This machine's line to itself is faster than what the volunteer allows; the volunteer hears of it, too."""
    write_status(coordinator, KEEPER)
    limits = Limits(upload_rate=40_000.0, download_rate=50_000.0)
    options = AgentOptions(coordinator.link, tmp_path / "ada", invite=coordinator.invite("ada"), limits=limits)
    shown = Recorder()
    agent = Agent(options, shown.open, time.time, worker_mains.doubts_its_line, Readings, poll_s=0.05)
    async with staying(agent):
        await eventually("the agent is ready", lambda: shown.devices)
    assert [e.device for e in shown.events if isinstance(e, Ready)] == [repr(LineMeasured(40_000.0))]
    told = [event.text for event in shown.events if isinstance(event, Notice) and "again" in event.text]
    assert told[0] == "The line was measured again: it has 0.3 Mbit/s."


async def test_a_worker_that_asks_twice_at_once_gets_one_measurement() -> None:
    """One that failed is told to nobody."""
    answers: list[float | None] = [3e6, None]
    begun = 0

    async def measure() -> float | None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0)
        return answers[begun - 1]

    told: list[LineMeasured | Notice] = []
    line = LineWatch(measure, told.append)
    for _ in range(2):
        line.measure()
        line.measure()
        for _ in range(5):
            await asyncio.sleep(0)
    assert (begun, told[:1], len(told)) == (2, [LineMeasured(3e6)], 2)


async def test_who_waits_no_more_is_told_nothing(tmp_path: Path) -> None:
    """The answer to a worker that has ended is no answer to the next one, which asks for itself."""
    asked: list[asyncio.Event] = []

    async def ask() -> control_pb2.CheckpointReply:
        asked.append(asyncio.Event())
        await asked[-1].wait()
        return control_pb2.CheckpointReply()

    told: list[CheckpointFetched | Notice] = []
    rng, throttle = random.Random(0), Throttle()
    watch = CheckpointWatch(
        ask, tmp_path, link_hosts=(), throttle=throttle, room_bytes=lambda: None, tell=told.append, rng=rng
    )
    watch.fetch(CheckpointWanted(1, 3))
    await eventually("the first has asked", lambda: len(asked) == 1)
    watch.stop()
    watch.fetch(CheckpointWanted(1, 3))
    await eventually("the second has asked", lambda: len(asked) == 2)
    assert told == []
    asked[1].set()
    await eventually("the second has its answer", lambda: told)
    assert told == [CheckpointFetched(0, "")]
