"""Telling and hearing that the database has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from coordinator.context.changes import LEAST_REST_S, Bell, Ear, listening
from coordinator.store.engine import Database, open_engine
from coordinator.store.notify import Topic, tell
from tests.support.postgres import new_database, new_server
from tests.support.stores import empty_store
from tests.support.waiting import PATIENCE_S, eventually

LONG_S = 10 * PATIENCE_S


async def rings(ear: Ear) -> None:
    """Wait until it does; it is ready for the next then."""
    await asyncio.wait_for(ear.rest(LONG_S), PATIENCE_S)
    ear.look()


async def test_who_rests_is_woken_by_its_own_topics_only() -> None:
    """And what rang since the last look began is not lost."""
    bell = Bell()
    ear, other = bell.ear(Topic.REVOCATIONS, Topic.SESSIONS), bell.ear(Topic.PROGRESS)
    ear.look()
    bell.ring(Topic.SESSIONS)
    await rings(ear)
    other.look()
    resting = asyncio.create_task(other.rest(LONG_S))
    bell.ring(Topic.REVOCATIONS)
    await rings(ear)
    assert not resting.done()
    bell.ring(Topic.PROGRESS)
    await asyncio.wait_for(resting, PATIENCE_S)


async def test_a_rest_is_as_long_as_the_look_took() -> None:
    """However often it rings, no more than half of the time is spent looking."""
    now = 0.0
    ear = Ear(lambda: now)
    ear.look()
    now = 0.4
    ear.ring()
    began = asyncio.get_running_loop().time()
    await ear.rest(LONG_S)
    assert asyncio.get_running_loop().time() >= began + 0.39


async def test_without_news_a_rest_ends_by_itself() -> None:
    """Where the database tells nothing, everybody looks again all the same."""
    await asyncio.wait_for(Ear().rest(0.01), PATIENCE_S)


async def test_who_is_cancelled_while_it_rings_ends() -> None:
    """Else a service that stops would wait for its own watcher for ever."""
    ear = Ear()
    resting = asyncio.create_task(ear.rest(LONG_S))
    await asyncio.sleep(2 * LEAST_REST_S)
    ear.ring()
    resting.cancel()
    await asyncio.wait({resting}, timeout=PATIENCE_S)
    assert resting.cancelled()


async def test_all_listeners_hear_when_a_transaction_commits() -> None:
    """Not before, and never of one that is undone."""
    with new_database() as address:
        engine = open_engine(address)
        database, bells = Database(engine), [Bell(), Bell()]
        ears = [bell.ear(Topic.REVOCATIONS) for bell in bells]
        async with listening(engine, bells[0]), listening(engine, bells[1]):
            for ear in ears:
                await rings(ear)  # that somebody listens now
            with database.begin() as session:
                tell(session, Topic.REVOCATIONS)
                session.rollback()
            with database.begin() as session:
                tell(session, Topic.PROGRESS)
                tell(session, Topic.REVOCATIONS)
                session.flush()
                assert not any(ear._rung.is_set() for ear in ears)
            for ear in ears:
                await rings(ear)
        engine.dispose()


async def test_what_a_newer_version_tells_is_passed_over() -> None:
    """Replicas of two versions may run side by side while one is updated."""
    with new_database() as address:
        engine = open_engine(address)
        bell = Bell()
        ear = bell.ear(Topic.PROGRESS)
        async with listening(engine, bell):
            await rings(ear)
            with Database(engine).begin() as session:
                session.execute(text("SELECT pg_notify('manyhands', 'weather')"))
            with Database(engine).begin() as session:
                tell(session, Topic.PROGRESS)
            await rings(ear)
        engine.dispose()


async def test_a_server_that_comes_back_is_listened_to_again(caplog: pytest.LogCaptureFixture) -> None:
    """The loss is said once; when the connection is back everybody looks, for they may have missed something."""
    with new_server() as server:
        engine: Engine = open_engine(server.url())
        bell = Bell()
        ear = bell.ear(Topic.PROGRESS)
        async with listening(engine, bell):
            await rings(ear)
            await asyncio.to_thread(server.stop)
            await eventually(
                "the listener has said that it polls every second", lambda: "polling every second" in caplog.text
            )
            await asyncio.to_thread(server.start)
            await rings(ear)
            assert caplog.text.count("polling every second") == 1
        engine.dispose()


async def test_on_sqlite_nothing_is_told(tmp_path: Path) -> None:
    """Telling and listening cost nothing there."""
    with empty_store(tmp_path) as database:
        bell = Bell()
        ear = bell.ear(*Topic)
        async with listening(database.engine, bell):
            with database.begin() as session:
                tell(session, Topic.PROGRESS)
            await ear.rest(0.01)
        assert not ear._rung.is_set()
