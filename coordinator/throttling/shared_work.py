"""Work that many requests share: writes in batches, and a value that is costly to compute.

A transaction costs much the same for one report as for a hundred. A request that comes while a batch is under way is in
the next one. A single request is served at once; under load a batch begins when the one before has ended and as long a
rest has passed as it took (a tenth of a second at most), which makes batches larger and leaves the processor to others.
Each caller is answered when its batch is done.

A value that costs little is always new. One that takes long, such as sums over millions of reports, is computed again
only when ten times as long has passed, so that it never takes more than a tenth of a core.
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
REST = 10  # times as long as it took
Value = TypeVar("Value")


class Batcher(Generic[Item, Result]):
    """Runs `work` in a thread, one batch at a time, in the order of arrival; used from one event loop.

    `work` returns a result for each item, or the error that this item alone is to be answered with.
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
        """Have this done with others'; who is cancelled in between has it done nevertheless."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Wait until all is done that was asked for."""
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
        except Exception as error:  # noqa: BLE001 - the boundary of a batch: each of its items is answered with it
            return [error] * len(items)


def _settle(future: asyncio.Future[Result], outcome: Result | Exception) -> None:
    if future.done():  # who asked is gone
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Costly(Generic[Value]):
    """The newest value of `work`, or a recent one; who asks while it is worked out waits for that."""

    def __init__(self, work: Callable[[], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._clock = work, clock
        self._found: Value | None = None
        self._good_until = clock()
        self._lock = threading.Lock()

    def __call__(self) -> Value:
        """The value."""
        with self._lock:
            began = self._clock()
            if self._found is None or began >= self._good_until:
                self._found = self._work()
                took_s = self._clock() - began
                self._good_until = began + took_s * (1 + REST) if took_s > LITTLE_S else began
            return self._found
