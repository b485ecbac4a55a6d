"""The latest snapshot, replaced by one background task and read by all routes.

The task takes a snapshot about once a second, or sooner if another process notifies it of changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from coordinator.context.changes import Ear
from coordinator.store.engine import trouble
from coordinator.web.state.snapshot import Snapshot

logger = logging.getLogger(__name__)
REFRESH_S = 1.0


class LiveSnapshot:
    """A container for the latest snapshot, which notifies tasks that wait for a new one."""

    def __init__(self, take: Callable[[Snapshot | None], Snapshot], ear: Ear | None = None) -> None:
        self._take = take
        self._ear = ear or Ear()
        self._current: Snapshot | None = None
        self._changed = asyncio.Event()
        self._ended = False

    @property
    def current(self) -> Snapshot:
        """The latest snapshot; available once the application has started."""
        assert self._current is not None
        return self._current

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Take one snapshot, and keep it unchanged until the block ends."""
        self._current = await asyncio.to_thread(self._take, None)
        yield

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Take a snapshot, and refresh it regularly until the block ends."""
        self._current = await asyncio.to_thread(self._take, None)
        task = asyncio.create_task(self._refresh_for_ever())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def updates(self) -> AsyncIterator[Snapshot]:
        """Yield the current snapshot, then new ones until `end()`; slow readers may miss some."""
        while not self._ended:
            changed = self._changed
            yield self.current
            await changed.wait()

    def end(self) -> None:
        """End all iterations of `updates`; called when the server stops."""
        self._ended = True
        self._changed.set()

    async def _refresh_for_ever(self) -> None:
        failing = False
        while True:
            await self._ear.rest(REFRESH_S)
            self._ear.look()
            try:
                self._current = await asyncio.to_thread(self._take, self._current)
                failing = False
            except SQLAlchemyError as error:  # the previous snapshot is kept, marked as stale
                if not failing:
                    logger.error("the store cannot be read: %s", trouble(error) or error)
                failing = True
                self._current = replace(self.current, refresh_failed=True)
            self._changed.set()
            self._changed = asyncio.Event()
