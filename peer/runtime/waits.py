"""Waits, given to code that waits for others and so runs in a thread or in virtual time.

Such code is written as coroutines that await nothing but a `Waits`. In a thread, each wait blocks,
so a coroutine runs to its end at once (`run_blocking`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from concurrent import futures
from contextlib import suppress
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")
POLL_S, FUTURE_POLL_S = 0.05, 0.2  # intervals of looks for news, alone and beside a future


class Waits(Protocol):
    """One peer's clock and its waits for others, all of which an interrupt ends."""

    def now(self) -> float:
        """Return the local time in seconds."""

    @property
    def is_interrupted(self) -> bool:
        """Whether this peer must stop waiting for others."""

    def interrupt(self) -> None:
        """End all waits, now and later; thread-safe."""

    async def pause(self, seconds: float) -> bool:
        """Wait for a time; return early, and True, if interrupted."""

    async def news(self, most_s: float, future: futures.Future[Any] | None = None) -> None:
        """Wait until the future is done or anything else may have changed, for at most `most_s` seconds."""

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> futures.Future[Result]:
        """Run a coroutine in the background."""


class ThreadWaits:
    """Waits that block the calling thread."""

    def __init__(self) -> None:
        self._interrupted = threading.Event()
        self._background = futures.ThreadPoolExecutor(1, "averaging")

    def now(self) -> float:
        """Return the local time in seconds."""
        return time.monotonic()

    @property
    def is_interrupted(self) -> bool:
        """Whether this peer must stop waiting for others."""
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """End all waits, now and later; thread-safe."""
        self._interrupted.set()

    async def pause(self, seconds: float) -> bool:
        """Wait for a time; return early, and True, if interrupted."""
        return self._interrupted.wait(seconds)

    async def news(self, most_s: float, future: futures.Future[Any] | None = None) -> None:
        """Wait until the future is done or anything else may have changed, for at most `most_s` seconds."""
        if future is None:
            self._interrupted.wait(min(most_s, POLL_S))
        else:
            with suppress(Exception):  # who asks for the result gets the error
                future.result(min(most_s, FUTURE_POLL_S))

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> futures.Future[Result]:
        """Run a coroutine in the background."""
        return self._background.submit(run_blocking, coroutine)

    def close(self) -> None:
        """Interrupt everything, and wait for the background."""
        self.interrupt()
        self._background.shutdown()


def run_blocking(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine whose waits block, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("A wait did not block.")
