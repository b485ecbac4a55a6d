"""The newest snapshot: one background task replaces it about once a second, everybody else only reads it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from coordinator.web.snapshot import Snapshot

logger = logging.getLogger(__name__)
REFRESH_S = 1.0


class LiveSnapshot:
    """Holds the newest snapshot and wakes those who wait for the next."""

    def __init__(self, take: Callable[[Snapshot | None], Snapshot]) -> None:
        self._take = take
        self._current: Snapshot | None = None
        self._changed = asyncio.Event()

    @property
    def current(self) -> Snapshot:
        """The newest snapshot; there is one from the start of the application on."""
        assert self._current is not None
        return self._current

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Take the first snapshot, then a new one again and again during the block."""
        self._current = await asyncio.to_thread(self._take, None)
        task = asyncio.create_task(self._refresh_for_ever())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def updates(self) -> AsyncIterator[Snapshot]:
        """The current snapshot, then each new one; a slow reader misses some, never the newest."""
        while True:
            changed = self._changed
            yield self.current
            await changed.wait()

    async def _refresh_for_ever(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                self._current = await asyncio.to_thread(self._take, self._current)
                failing = False
            except SQLAlchemyError as error:  # the last good one stays, and says that it is old
                if not failing:
                    logger.error("the store cannot be read: %s", error)
                failing = True
                self._current = replace(self.current, refresh_failed=True)
            self._changed.set()
            self._changed = asyncio.Event()
