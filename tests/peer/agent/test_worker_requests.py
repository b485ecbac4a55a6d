"""The line measured again during a stay: a real control plane, a worker's stand-in in a really spawned process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from peer.agent.agent import Agent
from peer.agent.options import AgentOptions
from peer.agent.worker_process import WorkerProcess, default_worker_main
from peer.agent.worker_requests import LineWatch
from peer.limits.limits import Limits
from peer.limits.policy import Readings
from peer.reporting.messages import LineMeasured, Notice, Ready, WorkerPlan
from tests.support import worker_mains
from tests.support.agents import Recorder
from tests.support.control_plane import KEEPER, serving, write_status
from tests.support.waiting import PATIENCE_S, eventually

PLAN = WorkerPlan("{}", "", "", "", ())


async def test_a_worker_in_doubt_is_told_what_the_line_has_within_the_limits(tmp_path: Path) -> None:
    """This machine's line to itself is faster than what the volunteer allows; the volunteer hears of it, too."""
    async with serving(tmp_path) as coordinator:
        write_status(coordinator, KEEPER)
        limits = Limits(upload_rate=40_000.0, download_rate=50_000.0)
        options = AgentOptions(coordinator.link, tmp_path / "ada", invite=coordinator.invite("ada"), limits=limits)
        shown = Recorder()
        agent = Agent(options, shown.open, time.time, worker_mains.doubts_its_line, Readings, poll_s=0.05)
        running = asyncio.create_task(agent.run())
        await eventually("the agent is ready", lambda: any(isinstance(event, Ready) for event in shown.events))
        agent.stop("test")
        await asyncio.wait_for(running, PATIENCE_S)
    assert [e.device for e in shown.events if isinstance(e, Ready)] == [repr(LineMeasured(40_000.0))]
    told = [event.text for event in shown.events if isinstance(event, Notice) and "again" in event.text]
    assert told[0] == "The line was measured again: it has 0.3 Mbit/s."


async def test_the_next_worker_begins_with_what_was_measured_last() -> None:
    """A worker that asks twice at once gets one measurement; one that failed leaves the rate as it was."""
    answers: list[float | None] = [3e6, None]
    begun = 0

    async def measure() -> float | None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0)
        return answers[begun - 1]

    shown: list[Notice] = []
    watch = LineWatch(measure, shown.append)
    assert watch.within(PLAN) is PLAN
    for _ in range(2):
        watch.measure_for(WorkerProcess(PLAN, default_worker_main))
        watch.measure_for(WorkerProcess(PLAN, default_worker_main))
        for _ in range(5):
            await asyncio.sleep(0)
        assert watch.within(PLAN).place.bandwidth == 3e6
    assert (begun, len(shown)) == (2, 1)
    watch.stop()
