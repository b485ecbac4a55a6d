"""An iterator that runs ahead of its consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from peer.data.sources.prefetching import Prefetched
from tests.support.waiting import PATIENCE_S


def test_items_come_in_order_and_end_with_the_source() -> None:
    """The consumer sees what the source gives, and its end, however often it asks."""
    prefetched = Prefetched(iter(range(5)), depth=2, name="prefetch")
    assert list(iter(prefetched.take, None)) == [0, 1, 2, 3, 4]
    assert list(iter(prefetched.take, None)) == []


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

    prefetched = Prefetched(source(), depth=3, name="prefetch")
    assert enough.wait(PATIENCE_S)
    prefetched.close()
    assert made == [0, 1, 2, 3]


def test_an_error_of_the_source_reaches_the_consumer() -> None:
    """What fails in the thread is raised where the item was expected, after the good items, and stays."""

    def source() -> Iterator[int]:
        yield 1
        raise OSError("disk gone")

    prefetched = Prefetched(source(), depth=5, name="prefetch")
    assert prefetched.take() == 1
    for _ in range(2):
        with pytest.raises(OSError, match="disk gone"):
            prefetched.take()
        assert prefetched.is_ready()  # with the error


def test_closing_ends_the_thread_and_the_stream() -> None:
    """A producer that waits for room stops, and the consumer gets nothing more."""
    prefetched = Prefetched(iter(count()), depth=1, name="prefetch")
    prefetched.take()
    prefetched.close()
    assert "prefetch" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(StopIteration):
        prefetched.take()


def test_who_does_not_want_to_wait_gets_nothing() -> None:
    """As long as no item was made; then it is ready."""
    may_go_on = threading.Event()
    prefetched = Prefetched((may_go_on.wait(PATIENCE_S) for _ in range(1)), depth=1, name="prefetch")
    assert not prefetched.is_ready()
    assert prefetched.take(0) is None
    may_go_on.set()
    assert prefetched.take() is True
