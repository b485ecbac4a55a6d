"""An iterator that runs ahead of its consumer in a thread, so that training never waits for text."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
STOP_CHECK_S = 0.1  # how often a producer that waits for room looks whether it is still wanted


@dataclass(frozen=True)
class _End:
    """The producer is done: normally, or with the error that the consumer shall see."""

    error: BaseException | None


class Prefetched(Generic[T]):
    """The items of `source`, at most `depth` of them made in advance; an error of the source is raised in its place."""

    def __init__(self, source: Iterator[T], depth: int, clock: Callable[[], float]) -> None:
        self._source, self._clock = source, clock
        self._queue: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        self._ended: _End | None = None
        self.wait_s = 0.0  # how long the consumer has waited for items so far
        self._thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._ended is None and not self._closed.is_set():
            started = self._clock()
            item = self._queue.get()
            self.wait_s += self._clock() - started
            if not isinstance(item, _End):
                return item
            self._ended = item
        if self._ended is not None and self._ended.error is not None:
            raise self._ended.error
        raise StopIteration

    def close(self) -> None:
        """Stop the producer and wait until it has stopped; the consumer gets no more items."""
        self._closed.set()
        self._thread.join()

    def _produce(self) -> None:
        try:
            for item in self._source:
                if not self._put(item):
                    return
            self._put(_End(None))
        except BaseException as error:  # noqa: BLE001 - raised again where the consumer stands
            self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        """Wait for room; False when nobody wants the item any more."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=STOP_CHECK_S)
                return True
            except queue.Full:
                continue
        return False
