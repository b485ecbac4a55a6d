"""Work of many, done together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from auth.errors import RequestError
from coordinator.throttling.shared_work import LITTLE_S, REST, Batcher, Costly
from tests.support.clocks import Clock
from tests.support.waiting import PATIENCE_S, eventually


class Work:
    """Doubles numbers, each batch when it is let; a negative one is its own asker's fault, zero spoils the batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(numbers))
        assert self.go.wait(PATIENCE_S)
        if 0 in numbers:
            raise OSError("the disk is gone")
        return [RequestError(f"{number} is negative") if number < 0 else 2 * number for number in numbers]


async def test_who_comes_during_a_batch_is_in_the_next() -> None:
    """The first begins at once, all others share the second, and each hears its own result."""
    work = Work()
    batches = Batcher(work)
    first = asyncio.create_task(batches.add(1))
    await eventually("the first batch is under way", lambda: work.batches)
    others = [asyncio.create_task(batches.add(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    work.go.set()
    assert await asyncio.gather(first, *others) == [2, 4, 6, 8]
    assert work.batches == [[1], [2, 3, 4]]


async def test_no_batch_is_larger_than_allowed() -> None:
    """What is left over is done next, in the order of arrival."""
    work = Work()
    work.go.set()
    batches = Batcher(work, most_at_once=2)
    assert await asyncio.gather(*(batches.add(number) for number in range(1, 6))) == [2, 4, 6, 8, 10]
    assert work.batches == [[1, 2], [3, 4], [5]]


async def test_the_fault_of_one_is_its_own() -> None:
    """The others of its batch are answered as if it were not there."""
    work = Work()
    work.go.set()
    batches = Batcher(work)
    answers = await asyncio.gather(*(batches.add(number) for number in (1, -1, 3)), return_exceptions=True)
    assert answers[::2] == [2, 6]
    assert isinstance(answers[1], RequestError)


async def test_a_batch_that_fails_ends_only_itself() -> None:
    """All who were in it hear why; who asks then is answered."""
    work = Work()
    work.go.set()
    batches = Batcher(work)
    answers = await asyncio.gather(batches.add(0), batches.add(1), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["the disk is gone"] * 2
    assert await batches.add(2) == 4


async def test_who_leaves_has_it_done_nevertheless() -> None:
    """A line that breaks while its report is being recorded hinders nobody, and the report stays."""
    work = Work()
    batches = Batcher(work)
    leaving, staying = (asyncio.create_task(batches.add(number)) for number in (1, 2))
    await eventually("the first batch is under way", lambda: work.batches)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    work.go.set()
    assert await staying == 4
    assert work.batches == [[1, 2]]


async def test_closing_waits_for_what_was_asked_for() -> None:
    """Nothing is under way afterwards; with nothing to do it returns at once."""
    work = Work()
    batches = Batcher(work)
    await batches.close()
    asking = asyncio.create_task(batches.add(1))
    await eventually("the first batch is under way", lambda: work.batches)
    closing = asyncio.create_task(batches.close())
    await asyncio.sleep(0)
    assert not closing.done()
    work.go.set()
    await closing
    assert await asking == 2


class Count:
    """How often it was worked out, each time taking so long."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        self.clock, self.takes_s, self.times = clock, takes_s, 0

    def __call__(self) -> int:
        self.clock.now += self.takes_s
        self.times += 1
        return self.times


def test_what_costs_little_is_always_new() -> None:
    """Each who asks gets what is true now."""
    clock = Clock()
    value = Costly(Count(clock, LITTLE_S / 2), clock)
    assert [value(), value(), value()] == [1, 2, 3]


def test_what_costs_much_rests_ten_times_as_long() -> None:
    """In between everybody gets the last value."""
    clock = Clock()
    value = Costly(Count(clock, 4.0), clock)
    assert [value(), value()] == [1, 1]
    clock.now += 4.0 * REST - 1
    assert value() == 1
    clock.now += 1
    assert value() == 2


def test_who_asks_at_the_same_time_shares_it() -> None:
    """A costly value is worked out once for all threads that wait."""
    clock = Clock()
    value = Costly(Count(clock, 4.0), clock)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: value(), range(8))) == [1] * 8
