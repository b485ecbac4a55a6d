"""Waits that block a thread, and coroutines that are run by them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent import futures

import pytest

from peer.runtime.waits import ThreadWaits, run_blocking
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def waits() -> Iterator[ThreadWaits]:
    """Waits whose background ends with the test."""
    made = ThreadWaits()
    yield made
    made.close()


def test_a_pause_ends_at_an_interrupt(waits: ThreadWaits) -> None:
    """A peer that leaves does not wait for the others first, nor pause again later; else the time passes."""
    assert not run_blocking(waits.pause(0.01))
    pausing = waits.start(waits.pause(PATIENCE_S))
    waits.interrupt()
    assert pausing.result(PATIENCE_S)
    assert run_blocking(waits.pause(PATIENCE_S))


@pytest.mark.parametrize("end", ["a result", "an error", "cancelled", "not yet"])
def test_who_waits_for_a_future_looks_again_soon(waits: ThreadWaits, end: str) -> None:
    """Other things may have changed, too; the future's error is for who asks for the result."""
    future = futures.Future[str]()
    if end == "a result":
        future.set_result("an average")
    elif end == "an error":
        future.set_exception(ValueError("the line is cut"))
    elif end == "cancelled":
        future.cancel()
    run_blocking(waits.news(PATIENCE_S, future))
    assert future.done() is (end != "not yet")


def test_a_coroutine_that_suspends_is_an_error() -> None:
    """Nothing would ever resume it; what it holds is released."""
    released: list[str] = []

    async def suspend() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            released.append("the lock")

    with pytest.raises(RuntimeError, match="did not block"):
        run_blocking(suspend())
    assert released == ["the lock"]


def test_what_is_started_runs_beside(waits: ThreadWaits) -> None:
    """While its starter goes on; its result or error is in the future."""
    goes_on = threading.Event()

    async def average(outcome: str) -> str:
        assert goes_on.wait(PATIENCE_S)
        if not outcome:
            raise ValueError("no group")
        return outcome

    running, failing = waits.start(average("a group")), waits.start(average(""))
    assert not running.done()
    goes_on.set()
    assert running.result(PATIENCE_S) == "a group"
    with pytest.raises(ValueError, match="no group"):
        failing.result(PATIENCE_S)


def test_who_closes_interrupts_the_background_and_waits_for_it() -> None:
    """Or a round could last for hours, and end in a process that has already left."""
    waits, ended = ThreadWaits(), list[bool]()

    async def average() -> None:
        ended.append(await waits.pause(PATIENCE_S))

    waits.start(average())
    waits.close()
    assert ended == [True]
