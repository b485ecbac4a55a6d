"""Messages between a process and one that it forks, each sent whole."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

logger = logging.getLogger(__name__)


class Channel:
    """One process's end of a pipe; `send` never blocks."""

    def __init__(self, connection: Connection, instead_of: Callable[[Any], Any]) -> None:
        """Set up this end, after the fork.

        `instead_of` returns the message to send in place of one that cannot be pickled, for example
        because no more files can be opened; None: no message.
        """
        self._connection, self._instead_of = connection, instead_of
        self._waiting = queue.Queue[Any]()
        self._writing = threading.Thread(target=self._write, name="channel", daemon=True)
        self._writing.start()

    def send(self, message: Any) -> None:
        """Send a message after those before it, unless the other process has ended."""
        self._waiting.put(message)

    @property
    def has_backlog(self) -> bool:
        """Whether messages still wait for the other process to read."""
        return self._waiting.unfinished_tasks > 0

    def flush(self) -> None:
        """Wait until all messages are sent, or the other process has ended."""
        self._waiting.join()

    def receive(self) -> Any:
        """Wait for the next message. Raises `EOFError` or `OSError` once the other process has ended."""
        while True:
            content = self._connection.recv_bytes()
            try:
                return ForkingPickler.loads(content)
            except Exception:
                logger.warning("a message between this peer's processes could not be read", exc_info=True)

    def _write(self) -> None:
        is_open = True
        while True:
            content = self._pickled(self._waiting.get())
            if content is not None and is_open:
                try:
                    self._connection.send_bytes(content)
                except OSError:  # the other process has ended
                    is_open = False
            self._waiting.task_done()

    def _pickled(self, message: Any) -> Any:
        try:
            return ForkingPickler.dumps(message)
        except Exception:
            logger.warning("%s could not be sent", type(message).__name__, exc_info=True)
            instead = self._instead_of(message)
            return None if instead is None else ForkingPickler.dumps(instead)
