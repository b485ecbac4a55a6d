"""Work shared between requests: writes in batches, and cached values that are costly to compute.

A transaction costs about the same for one report as for a hundred. Requests that arrive during a
batch are therefore handled together in the next batch. A single request is served immediately.
Under load, a pause as long as the previous batch (at most 0.1 s) precedes each batch. The pause
makes batches larger and leaves processor time to other tasks.

A cheap value is always recomputed. A slow value, such as a sum over millions of reports, is cached
for ten times its computation time, and thus uses at most a tenth of a core.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

MOST_AT_ONCE = 500
MOST_REST_S = 0.1

Item = TypeVar("Item")
Result = TypeVar("Result")
LITTLE_S = 0.25
REST = 10  # a slow value is cached for this many times its computation time
Value = TypeVar("Value")


class Batcher(Generic[Item, Result]):
    """A queue of items for one event loop; `work` processes them in a thread, batch by batch.

    `work` returns a result or an error for each item of the batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        most_at_once: int = MOST_AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._most, self._clock = work, most_at_once, clock
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None
        self._next_at = clock()

    async def add(self, item: Item) -> Result:
        """Return an item's result or raise its error; a cancelled call does not cancel the item."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Wait until all items are processed."""
        while self._running is not None:
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._next_at - self._clock()))
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                began = self._clock()
                outcomes = await self._outcomes([item for item, _ in batch])
                ended = self._clock()
                self._next_at = ended + min(MOST_REST_S, ended - began)
                for (_, future), outcome in zip(batch, outcomes, strict=True):
                    _settle(future, outcome)
        finally:
            self._running = None

    async def _outcomes(self, items: Sequence[Item]) -> Sequence[Result | Exception]:
        try:
            return await asyncio.to_thread(self._work, items)
        except Exception as error:  # noqa: BLE001 - every item of the batch gets the error
            return [error] * len(items)


def _settle(future: asyncio.Future[Result], outcome: Result | Exception) -> None:
    if future.done():  # the caller has been cancelled
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Costly(Generic[Value]):
    """A value computed by `work`, cached if slow; concurrent callers share one computation."""

    def __init__(self, work: Callable[[], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._clock = work, clock
        self._found: Value | None = None
        self._good_until = clock()
        self._lock = threading.Lock()

    def __call__(self) -> Value:
        """Return the cached value if it is still valid, else compute the value again."""
        with self._lock:
            began = self._clock()
            if self._found is None or began >= self._good_until:
                self._found = self._work()
                took_s = self._clock() - began
                self._good_until = began + took_s * (1 + REST) if took_s > LITTLE_S else began
            return self._found
