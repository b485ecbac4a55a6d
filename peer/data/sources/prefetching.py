"""Prefetching in a thread, for blocks of documents and for batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
CHECK_S = 0.1  # interval between checks for `close` while the queue is full


@dataclass(frozen=True)
class _End:
    """An end marker for the queue, with the error to raise in the consumer."""

    error: BaseException


class Prefetched(Generic[T]):
    """An iterator that prefetches up to `depth` items in a thread; `take` raises the thread's error."""

    def __init__(self, items: Iterator[T], depth: int, name: str) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        self._error: BaseException | None = None  # error that ended the iteration
        self._thread = threading.Thread(target=self._produce, args=(items,), name=name, daemon=True)
        self._thread.start()

    def take(self, timeout_s: float | None = None) -> T | None:
        """Return the next item, or None on timeout. Raises `StopIteration` at the end and after `close`."""
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
        """Return whether an item or the end is available."""
        return self._error is not None or not self._queue.empty()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop producing items, and wait up to `timeout_s` for the thread to end."""
        self._closed.set()
        self._thread.join(timeout_s)

    def _produce(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                if not self._put(item):
                    return
            self._put(_End(StopIteration()))
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        """Wait for room in the queue and put the item; return False if closed while waiting."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=CHECK_S)
                return True
            except queue.Full:
                continue
        return False
