"""The coordinator's end of a session, against raw streams: admission, messages, and presences written together."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from auth.errors import ExpiredTokenError, RequestError, TokenError
from auth.keys import DeviceKey, challenge_bytes
from coordinator.control import server, session as server_side
from coordinator.control.session import PresenceBook
from coordinator.ledger.sessions import PresenceClaim, close_session, online_sessions, open_session
from coordinator.ledger.steering import Steersman
from coordinator.statistics.people import newest_hardware
from coordinator.store.engine import Database
from coordinator.store.models import LostSamples
from peer.protocol import control_pb2
from peer.reporting.messages import Lost
from peer.reporting.wire import lost_to_wire, report_to_wire
from tests.support.control_plane import TestCoordinator, a_report, joined, samples_of, serving
from tests.support.raw_sessions import drained, greeted, next_of
from tests.support.waiting import PATIENCE_S, eventually


async def test_an_impossible_presence_is_dropped_and_the_session_goes_on(tmp_path: Path) -> None:
    """One bad record never spoils the rest."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.presence = control_pb2.Presence(step=2**60, state="training", samples_per_second=float("nan"))
        member.start()
        await eventually(
            "the bad request is recorded as refused", lambda: ("session", "bad-request") in coordinator.refusals()
        )
        member.outbox.put(a_report(1), completed_at=time.time())
        await eventually("the ledger has the samples of step 1", lambda: samples_of(coordinator) == {1: 32})


async def test_an_expired_token_is_refused_at_hello(tmp_path: Path) -> None:
    """The coordinator opens no session on a token whose time is over, and records that."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        coordinator.clock.ahead_s = 3601.0
        with pytest.raises(ExpiredTokenError):
            await greeted(member)
        assert coordinator.refusals() == [("session", "expired-token")]


async def test_a_hello_signed_by_another_key_is_refused(tmp_path: Path) -> None:
    """A token is no bearer secret: whoever shows it must hold the key that it names."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        thief = DeviceKey.load_or_create(tmp_path / "thief.key")
        with pytest.raises(TokenError, match="signed"):
            await greeted(member, thief)
        assert coordinator.refusals() == [("session", "bad-token")]


async def test_a_session_without_hello_is_refused(tmp_path: Path) -> None:
    """Nothing is taken from a stream before it has said who it is."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        call = member.client.open_session()
        await call.write(control_pb2.PeerMessage(report=report_to_wire(1, time.time(), a_report(1))))
        with pytest.raises(RequestError, match="hello"):
            await drained(call)
        assert samples_of(coordinator) == {}


async def test_a_session_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent stream does not hold a place for ever."""
    monkeypatch.setattr(server_side, "HANDSHAKE_TIMEOUT_S", 0.1)
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        with pytest.raises(RequestError, match="opened within"):
            await drained(member.client.open_session())
        assert coordinator.refusals() == [("session", "bad-request")]


async def test_a_recorded_hello_cannot_be_used_again(tmp_path: Path) -> None:
    """Each session has a nonce of its own, so an old signature opens nothing."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        first, second = member.client.open_session(), member.client.open_session()
        nonce = (await first.read()).challenge.nonce
        key = member.credentials.device_key
        hello = control_pb2.Hello(
            token=member.credentials.token_jwt,
            signature=key.sign(challenge_bytes("session", "test", nonce, key.public_key)),
        )
        await second.write(control_pb2.PeerMessage(hello=hello))
        with pytest.raises(TokenError):
            await drained(second)
        first.cancel()


async def test_the_newest_session_of_a_device_counts(tmp_path: Path) -> None:
    """A second session of the same device ends the first, so no device is here twice."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        first = await greeted(member)
        second = await greeted(member)
        with pytest.raises(RequestError, match="twice"):
            await drained(first)
        second.cancel()


async def test_a_session_begins_with_its_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """News for all sessions that come while one is being opened do not overtake its welcome."""
    monkeypatch.setattr(server, "REFRESH_EVERY_S", 0.01)
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path) as ada,
        joined(coordinator, tmp_path, "Bob") as bob,
    ):
        first = await greeted(ada)
        ledger, looked_up, told = coordinator.services.ledger, threading.Event(), threading.Event()
        last_seq = ledger.last_seq

        def last_seq_once_all_are_told(device_id: str) -> int:
            looked_up.set()
            assert told.wait(PATIENCE_S)
            return last_seq(device_id)

        monkeypatch.setattr(ledger, "last_seq", last_seq_once_all_are_told)
        opening = asyncio.create_task(greeted(bob))
        await eventually("Bob's session is being opened", looked_up.is_set)
        services = coordinator.services
        Steersman(services.database, services.config, "root", services.clock).announce("Hello")
        await next_of(first, "notice")
        told.set()
        (await opening).cancel()
        first.cancel()


async def test_a_flood_of_messages_is_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its pace a session's messages wait unread: here two are taken at once, the third in a very long time."""
    monkeypatch.setattr(server_side, "MESSAGES_AT_ONCE", 2.0)
    monkeypatch.setattr(server_side, "MESSAGES_PER_SECOND", 1e-6)
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        call = await greeted(member)
        for step in (1, 2, 3):
            await call.write(control_pb2.PeerMessage(report=report_to_wire(step, time.time(), a_report(step))))
        for _ in range(2):
            assert (await next_of(call, "ack")).ack.accepted
        await asyncio.sleep(0.2)
        assert sorted(samples_of(coordinator)) == [1, 2]
        call.cancel()


async def test_impossible_losses_are_refused_for_good(tmp_path: Path) -> None:
    """Step 0, or more than can have been computed: recorded, and not to be sent again; the session goes on."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        call = await greeted(member)
        for number, lost in enumerate((Lost(0, {"left": 1}), Lost(1, {"left": 2**31 - 1})), start=1):
            await call.write(control_pb2.PeerMessage(lost=lost_to_wire(number, time.time(), lost)))
            assert not (await next_of(call, "ack")).ack.accepted
        assert {kind for kind, _ in coordinator.refusals()} == {"report"}
        assert lost_in(coordinator) == {}
        call.cancel()


async def test_a_device_is_known_by_what_its_worker_found(tmp_path: Path) -> None:
    """What computes is known only after the hello; control characters stay out."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.presence = control_pb2.Presence(step=1, state="training", device="cuda:0 (Tesla\n T4)")
        member.start()
        await eventually(
            "the ledger has the member's hardware",
            lambda: "cuda:0 (Tesla T4)" in newest_hardware(coordinator.services.database).values(),
        )


def lost_in(coordinator: TestCoordinator) -> dict[str, int]:
    """Cause -> samples."""
    with coordinator.services.database() as session:
        return {row.cause: row.samples for row in session.scalars(select(LostSamples))}


NOW = 1_800_000_000.0

DEVICES = ("ada-1", "ada-2", "bob-1")

NEVER_S = 3600.0


def claim(step: int) -> PresenceClaim:
    return PresenceClaim(step, 12, 3.5, "training", NOW + step)


def steps_of(database: Database) -> dict[str, int]:
    return {row.device_id: row.step for row in online_sessions(database, NOW + 5)}


@pytest.mark.usefixtures("members")
async def test_all_are_written_in_one_transaction_with_their_last_words(database: Database) -> None:
    """Who spoke twice is written once; who has left in between stays away."""
    stays = [open_session(database, device, "", "", NOW) for device in DEVICES]
    commits: list[Any] = []
    book = PresenceBook(database, NEVER_S)
    for step in (1, 2):
        for stay in stays:
            book.note(stay, claim(step))
    close_session(database, stays[2], NOW + 1)
    event.listen(database.engine, "commit", commits.append)
    await book.close()
    assert len(commits) == 1
    assert steps_of(database) == {"ada-1": 2, "ada-2": 2}


@pytest.mark.usefixtures("members")
async def test_it_writes_by_itself_again_and_again(database: Database) -> None:
    """Nobody need ask for it."""
    stay = open_session(database, "ada-1", "", "", NOW)
    book = PresenceBook(database, 0.01)
    for step in (1, 2):
        book.note(stay, claim(step))
        await eventually("the store has the newest step", lambda step=step: steps_of(database) == {"ada-1": step})
    await book.close()


@pytest.mark.parametrize("store_kind", ["sqlite"])
@pytest.mark.usefixtures("members")
async def test_a_database_that_is_away_costs_only_what_was_to_be_written(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next words are written when it is back."""
    stay = open_session(database, "ada-1", "", "", NOW)
    with database.begin() as session:
        session.connection().exec_driver_sql("ALTER TABLE sessions RENAME TO away")
    book = PresenceBook(database, 0.01)
    book.note(stay, claim(1))
    await eventually("the failed write is logged", lambda: "Cannot write who is here" in caplog.text)
    with database.begin() as session:
        session.connection().exec_driver_sql("ALTER TABLE away RENAME TO sessions")
    book.note(stay, claim(2))
    await eventually("the store has the newest step", lambda: steps_of(database) == {"ada-1": 2})
    await book.close()
