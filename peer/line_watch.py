"""The agent's part in knowing the line: measures it again when a worker asks, and tells that one and those after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from peer.messages import LineMeasured, Notice, WorkerPlan
from peer.place import describe_rate
from peer.worker_process import WorkerProcess

MeasureLine = Callable[[], Awaitable[float | None]]  # bytes per second, slower direction; None: could not be measured


class LineWatch:
    """One stay's; how often a worker asks is its own decision (`peer.line_estimate`)."""

    def __init__(self, measure: MeasureLine, show: Callable[[Notice], None]) -> None:
        self._measure, self._show = measure, show
        self._rate: float | None = None  # as measured last; None: not since joining
        self._measuring: asyncio.Task[None] | None = None

    def within(self, plan: WorkerPlan) -> WorkerPlan:
        """The plan for a worker that starts now."""
        return plan if self._rate is None else replace(plan, place=replace(plan.place, bandwidth=self._rate))

    def measure_for(self, worker: WorkerProcess) -> None:
        """Measure beside everything else; a worker that asks again meanwhile gets the same answer."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._tell(worker))

    async def _tell(self, worker: WorkerProcess) -> None:
        rate = await self._measure()
        if rate is None:  # it is asked again, later
            return
        self._rate = rate
        worker.tell(LineMeasured(rate))
        self._show(Notice("info", f"The line was measured again: it has {describe_rate(rate)}."))

    def stop(self) -> None:
        """Nobody waits for the answer any more."""
        if self._measuring is not None:
            self._measuring.cancel()
