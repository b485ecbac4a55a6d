"""A one-way queue between a forked process and its parent, whose writer never blocks."""

from __future__ import annotations

import multiprocessing as mp
import threading
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """A queue of at most `most` items, which must fit into a pipe (64 KiB) together."""

    def __init__(self, most: int) -> None:
        self._most, self._waiting = most, mp.Value("i", 0)
        self._reader, self._writer = mp.Pipe(duplex=False)
        self._sending = threading.Lock()  # between the writer's threads

    def put(self, item: Item) -> bool:
        """Send an item without blocking; return False if too many are waiting."""
        with self._waiting.get_lock():
            if self._waiting.value >= self._most:
                return False
            self._waiting.value += 1
        with self._sending:
            self._writer.send(item)
        return True

    def get(self) -> Item:
        """Wait for the next item. Raises `EOFError` after `close`, once the fork has ended, too."""
        try:
            item: Item = self._reader.recv()
        finally:
            with self._waiting.get_lock():
                self._waiting.value -= 1
        return item

    def take(self) -> list[Item]:
        """Return the items that were sent since the last call."""
        taken = []
        while self._reader.poll():
            taken.append(self.get())
        return taken

    def close(self) -> None:
        """Let a waiting `get` end; for the parent process only."""
        self._writer.close()
