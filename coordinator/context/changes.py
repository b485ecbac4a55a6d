"""Notifications of database changes by other processes, using PostgreSQL's LISTEN.

Each waiting task has an `Ear` for its topics, woken by the service process's one listening task.
Without notifications, tasks poll every second, so a lost connection causes only a short delay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy import Engine

from coordinator.store.engine import patience
from coordinator.store.notify import CHANNEL, Topic

logger = logging.getLogger(__name__)
AGAIN_S = 2.0  # delay before reconnecting to the database
LEAST_REST_S = 0.2  # minimum interval between two polls, regardless of notifications


class Ear:
    """A receiver of notifications for one task that also polls at intervals."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._rung = asyncio.Event()
        self._clock = clock
        self._looked_at = clock()

    def ring(self) -> None:
        """Wake the waiting task."""
        self._rung.set()

    def look(self) -> None:
        """Mark the beginning of a poll; any later notification wakes the task for another poll."""
        self._rung.clear()
        self._looked_at = self._clock()

    async def rest(self, most_s: float) -> None:
        """Wait up to `most_s` for a notification, and at least as long as the last poll took."""
        least_s = min(most_s, max(LEAST_REST_S, self._clock() - self._looked_at))
        await asyncio.sleep(least_s)
        ringing = asyncio.create_task(self._rung.wait())
        try:  # `wait_for` may swallow a cancellation before Python 3.12
            await asyncio.wait({ringing}, timeout=most_s - least_s)
        finally:
            ringing.cancel()


class Bell:
    """All notification receivers of a process; they belong to one event loop."""

    def __init__(self) -> None:
        self._ears: dict[Topic, list[Ear]] = {topic: [] for topic in Topic}

    def ear(self, *topics: Topic) -> Ear:
        """Create a notification receiver for these topics."""
        ear = Ear()
        for topic in topics:
            self._ears[topic].append(ear)
        return ear

    def ring(self, *topics: Topic) -> None:
        """Wake every task that waits for one of these topics."""
        for topic in topics:
            for ear in self._ears[topic]:
                ear.ring()


@asynccontextmanager
async def listening(engine: Engine, bell: Bell) -> AsyncIterator[None]:
    """Forward database notifications to the bell within the block; SQLite has no notifications."""
    if engine.dialect.name != "postgresql":
        yield
        return
    task = asyncio.create_task(_listen_for_ever(engine, bell))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _listen_for_ever(engine: Engine, bell: Bell) -> None:
    failing = False
    while True:
        try:
            async with await _connect(engine) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                bell.ring(*Topic)  # notifications may have been missed while disconnected
                failing = False
                async for notification in connection.notifies():
                    _hear(notification.payload, bell)
        except psycopg.Error as error:  # reconnect after any error
            if not failing:
                logger.warning("cannot listen to the database for changes, polling every second: %s", error)
            failing = True
        await asyncio.sleep(AGAIN_S)


async def _connect(engine: Engine) -> psycopg.AsyncConnection[TupleRow]:
    arguments, options = engine.dialect.create_connect_args(engine.url)
    return await psycopg.AsyncConnection.connect(*arguments, autocommit=True, **{**patience(engine.url), **options})


def _hear(payload: str, bell: Bell) -> None:
    with suppress(ValueError):  # ignore topics of newer versions
        bell.ring(Topic(payload))
