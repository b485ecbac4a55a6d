"""One device in virtual time: its tasks, and the waits of its peer (`peer.runtime.waits`)."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent import futures
from typing import Any, TypeVar

Result = TypeVar("Result")
LEAST_S = 1e-3  # shortest wait, so that rounding does not make waits endless
Thaw = Callable[[], "asyncio.Event | None"]  # the event that a stopped device waits for; None: it is not stopped
_waits: contextvars.ContextVar[VirtualWaits] = contextvars.ContextVar("waits")  # of the device that runs


class Signal:
    """Wakes everybody who waits for it at this moment."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order of their waits

    def tell(self) -> None:
        """End the waits."""
        for waiter in self._waiting:
            _wake(waiter)

    async def wait(self, most_s: float, future: futures.Future[Any] | None = None) -> None:
        """Wait until this signal or the end of `future`, for at most `most_s` seconds."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = None
        timer = loop.call_later(max(LEAST_S, most_s), _wake, waiter)
        if future is not None:
            future.add_done_callback(lambda _: _wake(waiter))
        try:
            await waiter
        finally:
            timer.cancel()
            del self._waiting[waiter]


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class VirtualWaits(Signal):
    """The waits of one device's peer for news, and its tasks, which stand still and end with the device."""

    def __init__(self, thaw: Thaw | None) -> None:
        """Set up a device; `thaw` is None if it is never stopped."""
        super().__init__()
        self._thaw, self._loop = thaw, asyncio.get_running_loop()
        self.is_interrupted = self.is_dead = False
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their start
        self._context = contextvars.copy_context()
        self._context.run(_waits.set, self)

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._loop.time()

    def interrupt(self) -> None:
        """End all waits, now and later."""
        self.is_interrupted = True
        self.tell()

    async def pause(self, seconds: float) -> bool:
        """Wait for a time; return early, and True, if interrupted."""
        ends_at = self.now() + seconds
        while not self.is_interrupted and (left_s := ends_at - self.now()) > 0:
            await self.wait(left_s)
        return self.is_interrupted

    news = Signal.wait

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> futures.Future[Result]:
        """Run a coroutine in the background."""
        future = futures.Future[Result]()

        async def run() -> None:
            future.set_result(await coroutine)

        self.spawn(run())
        return future

    @property
    def is_stopped(self) -> bool:
        """Whether this device stands still."""
        return self._thaw is not None and self._thaw() is not None

    def within(self, act: Callable[[], Result]) -> Result:
        """Call a function as this device, so that the tasks that it creates are this device's."""
        return self._context.run(act)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine of this device until it ends, or until the device dies."""
        return self.within(lambda: asyncio.create_task(coroutine))

    def die(self) -> None:
        """End all other tasks of this device."""
        self.is_dead = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def task_of(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Create a task of this device."""
        running = coroutine if self._thaw is None else _standing_still(coroutine, self._thaw)
        task = asyncio.Task(running, loop=self._loop)
        self._tasks[task] = None
        task.add_done_callback(lambda _: self._ended(task, coroutine))
        return task

    def _ended(self, task: asyncio.Task[Any], coroutine: Coroutine[Any, Any, Any]) -> None:
        del self._tasks[task]
        coroutine.close()  # which a task that was cancelled before its start has not begun


def task_of_device(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Create a task of the device whose task creates it (a task factory for asyncio's event loops)."""
    waits = _waits.get(None)
    return asyncio.Task(coroutine, loop=loop, **options) if waits is None else waits.task_of(coroutine)


async def _standing_still(coroutine: Coroutine[Any, Any, Result], thaw: Thaw) -> Result:
    return await _held(coroutine, thaw)


@types.coroutine
def _held(coroutine: Coroutine[Any, Any, Result], thaw: Thaw) -> Generator[Any, None, Result]:
    """Run a coroutine, which does not go on while its device is stopped."""
    error: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as end:
            result: Result = end.value
            return result
        error = None
        try:
            yield awaited
            while (stopped := thaw()) is not None:
                yield from stopped.wait().__await__()
        except BaseException as raised:  # noqa: BLE001 - the coroutine's to handle
            error = raised
