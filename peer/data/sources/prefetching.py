"""Items made ahead of their consumer in a thread: blocks of documents, and batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
CHECK_S = 0.1  # between two looks whether an item that waits for room is still wanted


@dataclass(frozen=True)
class _End:
    """The end of the items, with the error that the consumer shall see."""

    error: BaseException


class Prefetched(Generic[T]):
    """The items of an iterator, at most `depth` of them made in advance; its error is raised in their place."""

    def __init__(self, items: Iterator[T], depth: int, name: str) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        self._error: BaseException | None = None  # at which the items ended
        self._thread = threading.Thread(target=self._produce, args=(items,), name=name, daemon=True)
        self._thread.start()

    def take(self, timeout_s: float | None = None) -> T | None:
        """Return the next item, or None if there is none in time; raises `StopIteration` at the end and once closed."""
        if self._error is None and not self._closed.is_set():
            try:
                item = self._queue.get(timeout=timeout_s)
            except queue.Empty:
                return None
            if not isinstance(item, _End):
                return item
            self._error = item.error
        raise self._error or StopIteration

    def is_ready(self) -> bool:
        """Return whether an item, or the end, has been made."""
        return self._error is not None or not self._queue.empty()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop making items, and wait until the thread has ended, but no longer than `timeout_s`."""
        self._closed.set()
        self._thread.join(timeout_s)

    def _produce(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                if not self._put(item):
                    return
            self._put(_End(StopIteration()))
        except BaseException as error:  # noqa: BLE001 - raised again where the consumer stands
            self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        """Wait for room; False when nobody wants the item any more."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=CHECK_S)
                return True
            except queue.Full:
                continue
        return False
