"""One peer's waits in virtual time (`peer.runtime.waits`)."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from concurrent import futures
from typing import Any, TypeVar

import simpy

from peer.rehearsal.troubles import Process

Result = TypeVar("Result")
LEAST_S = 1e-3  # shortest wait, so that rounding does not make waits endless


class DeathError(BaseException):
    """The device has died; no fault boundary holds this up."""


@types.coroutine
def until(event: simpy.Event) -> Generator[simpy.Event, Any, Any]:
    """Wait in a coroutine for an event, and return its value. Raises `DeathError`."""
    try:
        return (yield event)
    except simpy.Interrupt as interrupt:
        raise DeathError(interrupt.cause) from None


def process_of(coroutine: Coroutine[Any, Any, object]) -> Process:
    """Return a coroutine as a process of the simulation."""
    return (yield from coroutine.__await__())


class VirtualFuture(futures.Future[Result]):
    """A future for which a coroutine in virtual time can wait."""

    def __init__(self, env: simpy.Environment) -> None:
        """Set up a future without a result."""
        super().__init__()
        self.arrived = env.event()
        self.add_done_callback(lambda _: self.arrived.succeed())


class VirtualWaits:
    """The waits of one device's peer."""

    def __init__(self, env: simpy.Environment, held: Callable[[Process], Process]) -> None:
        """Set up waits; `held` runs a process that is suspended while the device is stopped."""
        self._env, self._held = env, held
        self.interrupted, self._news = env.event(), env.event()
        self._background: list[simpy.Process] = []

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return float(self._env.now)

    @property
    def is_interrupted(self) -> bool:
        """Whether this peer must stop waiting for others."""
        return bool(self.interrupted.triggered)

    def interrupt(self) -> None:
        """End all waits, now and later."""
        if not self.is_interrupted:
            self.interrupted.succeed()

    def tell(self) -> None:
        """End the waits for news."""
        news, self._news = self._news, self._env.event()
        news.succeed()

    async def pause(self, seconds: float) -> bool:
        """Wait for a time; return early, and True, if interrupted."""
        await until(self._env.timeout(max(LEAST_S, seconds)) | self.interrupted)
        return self.is_interrupted

    async def news(self, most_s: float, future: futures.Future[Any] | None = None) -> None:
        """Wait until the future is done or anything else may have changed, for at most `most_s` seconds."""
        awaited = [self._env.timeout(max(LEAST_S, most_s)), self._news]
        if isinstance(future, VirtualFuture):
            awaited.append(future.arrived)
        if not self.is_interrupted:
            awaited.append(self.interrupted)
        await until(self._env.any_of(awaited))

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> futures.Future[Result]:
        """Run a coroutine in the background."""
        future = VirtualFuture[Result](self._env)

        async def run() -> None:
            try:
                future.set_result(await coroutine)
            except DeathError as death:
                future.set_exception(death)

        self.spawn(run())
        return future

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine of this device until it ends, or until the device dies."""
        running = self._env.process(self._held(process_of(coroutine)))
        assert running.callbacks is not None
        running.callbacks.append(_forgive)
        self._background = [*(each for each in self._background if each.is_alive), running]

    def die(self) -> None:
        """End everything that runs in the background."""
        for each in self._background:
            if each.is_alive and each is not self._env.active_process:
                each.interrupt("its device has died")


def _forgive(ended: simpy.Event) -> None:
    """Let a process end with its device."""
    if isinstance(ended.value, (DeathError, simpy.Interrupt)):
        ended.defused = True
