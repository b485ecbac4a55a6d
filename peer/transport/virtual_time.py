"""An asyncio event loop whose clock jumps to the next timer while all tasks wait.

Hours of a swarm pass in seconds, and a seed always gives the same course of events. The loop is
asyncio's own; only its selector differs: it advances the clock to the next timer instead of waiting
for file descriptors. Tasks must therefore wait only for timers and for each other.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

Result = TypeVar("Result")


class StuckError(Exception):
    """All tasks wait, and no timer is set."""


class _JumpingSelector(selectors.BaseSelector):
    """A selector that returns at once and adds up the seconds that it should have waited."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._keys[fileobj] = selectors.SelectorKey(fileobj, -1, events, data)
        return self._keys[fileobj]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("All tasks wait, and no timer is set: none of them can continue.")
        self.passed_s += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock that begins at 0 seconds."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual.passed_s

    def run_in_executor(
        self,
        executor: object,  # noqa: ARG002
        func: Callable[..., Any],
        *args: object,
    ) -> asyncio.Future[Any]:
        """Call a function at once, in zero virtual time; in a thread it would take real time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in virtual time, then cancel all other tasks.

    Raises `StuckError` if the coroutine can never end.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        if left := asyncio.all_tasks(loop):
            for task in sorted(left, key=lambda task: (len(task.get_name()), task.get_name())):  # in order of creation
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
