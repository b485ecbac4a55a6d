"""Waits in which only a test's clock passes; coroutines that use them run at once with `run_blocking`."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any

from peer.runtime.waits import FUTURE_POLL_S, POLL_S, Result, run_blocking
from tests.support.clocks import Clock

MOST_WAITS = 50_000


class TurnedWaits:
    """Waits that turn a clock instead of blocking; `after_wait` is what happens meanwhile."""

    def __init__(self, clock: Clock | None = None, after_wait: Callable[[], object] = lambda: None) -> None:
        self.clock = clock or Clock()
        self.after_wait = after_wait
        self.waits: list[float] = []  # seconds of each; 0 where there was nothing to wait for
        self.is_interrupted = False

    def now(self) -> float:
        """The test's time."""
        return self.clock.now

    def interrupt(self) -> None:
        """End all waits, now and later."""
        self.is_interrupted = True

    async def pause(self, seconds: float) -> bool:
        """Let the seconds pass unless interrupted."""
        self._pass(0.0 if self.is_interrupted else seconds)
        return self.is_interrupted

    async def news(self, most_s: float, future: futures.Future[Any] | None = None) -> None:
        """Let one look's time pass unless the future is done."""
        if future is None:
            self._pass(0.0 if self.is_interrupted else min(most_s, POLL_S))
        else:
            self._pass(0.0 if future.done() else min(most_s, FUTURE_POLL_S))

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> futures.Future[Result]:
        """Run a coroutine to its end, before the caller goes on."""
        future = futures.Future[Result]()
        try:
            future.set_result(run_blocking(coroutine))
        except Exception as error:  # noqa: BLE001 - for whoever asks for the result
            future.set_exception(error)
        return future

    def _pass(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert len(self.waits) <= MOST_WAITS, "nothing ends the wait"
        if seconds > 0:  # however short: time always passes
            self.clock.now = max(self.clock.now + seconds, math.nextafter(self.clock.now, math.inf))
        self.after_wait()
