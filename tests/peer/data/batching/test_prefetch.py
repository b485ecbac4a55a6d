"""An iterator that runs ahead of its consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from peer.data.batching.batches import Prefetched
from tests.support.waiting import PATIENCE_S


class Ticks:
    """A clock that goes on by one second each time it is read."""

    def __init__(self) -> None:
        self._now = count()

    def __call__(self) -> float:
        return float(next(self._now))


def test_items_come_in_order_and_end_with_the_source() -> None:
    """The consumer sees what the source gives, and its end, however often it asks."""
    prefetched = Prefetched(iter(range(5)), depth=2, clock=Ticks())
    assert list(prefetched) == [0, 1, 2, 3, 4]
    assert list(prefetched) == []


def test_the_source_runs_ahead_but_not_away() -> None:
    """Before the first item is asked for, `depth` items and one more are made, not all of them."""
    made: list[int] = []
    enough = threading.Event()

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 3:
                enough.set()
            yield number

    prefetched = Prefetched(source(), depth=3, clock=Ticks())
    assert enough.wait(PATIENCE_S)
    prefetched.close()
    assert made == [0, 1, 2, 3]


def test_an_error_of_the_source_reaches_the_consumer() -> None:
    """What fails in the thread is raised where the item was expected, after the good items, and stays."""

    def source() -> Iterator[int]:
        yield 1
        raise OSError("disk gone")

    prefetched = Prefetched(source(), depth=5, clock=Ticks())
    assert next(prefetched) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="disk gone"):
            next(prefetched)


def test_closing_ends_the_thread_and_the_stream() -> None:
    """A producer that waits for room stops, and the consumer gets nothing more."""
    prefetched = Prefetched(iter(count()), depth=1, clock=Ticks())
    next(prefetched)
    prefetched.close()
    assert "prefetch" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(StopIteration):
        next(prefetched)


def test_the_time_spent_waiting_is_counted() -> None:
    """Each item adds the clock's difference around the wait for it."""
    prefetched = Prefetched(iter("abc"), depth=1, clock=Ticks())
    next(prefetched)
    next(prefetched)
    assert prefetched.wait_s == 2.0
    prefetched.close()
