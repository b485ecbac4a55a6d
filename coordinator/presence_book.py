"""What all connected devices last said of themselves, written together: one transaction a second, however many speak.

Each says it every few seconds, and only the last word matters. So nobody waits for the database here, and what a
device says twice within a second is written once.
"""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import SQLAlchemyError

from coordinator.presence import PresenceClaim, touch_sessions
from coordinator.store.engine import Sessions

logger = logging.getLogger(__name__)
WRITE_EVERY_S = 1.0


class PresenceBook:
    """The claims that are still to be written, one for each session; used from one event loop."""

    def __init__(self, sessions: Sessions, write_every_s: float = WRITE_EVERY_S) -> None:
        self._sessions, self._write_every_s = sessions, write_every_s
        self._unwritten: dict[str, PresenceClaim] = {}
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(self, session_id: str, claim: PresenceClaim) -> None:
        """Take the place of what this session's device said before."""
        self._unwritten[session_id] = claim
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_while_needed())

    async def close(self) -> None:
        """Write what is left, at once."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write_while_needed(self) -> None:
        try:
            while self._unwritten:
                await self._rest()
                claims, self._unwritten = self._unwritten, {}
                try:
                    await asyncio.to_thread(touch_sessions, self._sessions, claims)
                except SQLAlchemyError:  # the boundary of a poll: they will speak again
                    logger.exception("Cannot write who is here; trying again")
        finally:
            self._writing = None

    async def _rest(self) -> None:
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({closing}, timeout=self._write_every_s)
        finally:
            closing.cancel()
