"""The session, both ends, over real gRPC and TLS: reports counted once, revocation, renewal, reconnection, order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from auth.credentials import Credentials
from auth.errors import ExpiredTokenError, RequestError, RevokedError, TokenError, UnreachableError
from auth.identity import DeviceKey, challenge_bytes
from coordinator import session_stream as server_side
from coordinator.presence import online_sessions
from peer.control_client import ControlClient
from peer.outbox import Outbox
from peer.protocol import control_pb2
from peer.protocol.wire import report_to_wire
from peer.session import Session, renewal_due_at, retry_delay_s
from peer.session_stream import Greeting, SessionStream
from tests.control_plane import (
    QUICK,
    Heard,
    SteppedClock,
    TestCoordinator,
    a_report,
    connected,
    eventually,
    join_as,
    serving,
)

PRESENCE = control_pb2.Presence(step=4, own_samples=12, samples_per_second=3.5, state="training")


class Member:
    """One joined device: its outbox, what it heard, and its session while it runs."""

    def __init__(self, client: ControlClient, credentials: Credentials, clock: SteppedClock, directory: Path) -> None:
        self.client, self.credentials, self.clock = client, credentials, clock
        self.outbox = Outbox(directory / "outbox.sqlite3", clock)
        self.heard = Heard()
        self.stop = asyncio.Event()
        self.presence: control_pb2.Presence | None = PRESENCE
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        session = Session(
            self.client,
            self.credentials,
            clock=self.clock,
            rng=random.Random(0),
            hardware="8 cores",
            software="0.1.0",
            timing=QUICK,
        )
        handlers = self.heard.handlers(self.credentials)
        self.running = asyncio.create_task(session.run(self.outbox, lambda: self.presence, handlers, self.stop))

    async def leave(self) -> None:
        self.stop.set()
        assert self.running is not None
        await asyncio.wait_for(self.running, 20)


@asynccontextmanager
async def joined(coordinator: TestCoordinator, directory: Path, name: str = "Ada") -> AsyncIterator[Member]:
    """A member whose session has not started yet; it is ended with the block."""
    async with connected(coordinator) as client:
        credentials = await join_as(coordinator, client, directory / name, name)
        member = Member(client, credentials, SteppedClock(), directory / name)
        try:
            yield member
        finally:
            if member.running is not None:
                member.running.cancel()
                await asyncio.gather(member.running, return_exceptions=True)
            member.outbox.close()


def samples_of(coordinator: TestCoordinator) -> dict[int, int]:
    return {row.step: row.samples for row in coordinator.services.ledger.steps()}


async def test_reports_reach_the_ledger_and_leave_the_outbox(tmp_path: Path) -> None:
    """What was put before and during the session is counted, acknowledged and forgotten; the standing comes back."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.outbox.put(a_report(1), era=0, completed_at=time.time())
        member.start()
        await eventually(lambda: samples_of(coordinator) == {1: 32})
        member.outbox.put(a_report(2, samples=16), era=0, completed_at=time.time())
        await eventually(lambda: samples_of(coordinator) == {1: 32, 2: 16} and len(member.outbox) == 0)
        await eventually(lambda: bool(member.heard.standings) and member.heard.standings[-1].own_samples == 48)
        assert (member.heard.standings[-1].rank, member.heard.standings[-1].members) == (1, 1)
        assert member.heard.notices == []


async def test_presence_shows_the_device_online_until_it_says_goodbye(tmp_path: Path) -> None:
    """The coordinator knows who is here, on what, and how fast; an ordered end is seen at once."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:

        def online() -> list[tuple[str, str, str, int, float]]:
            found = online_sessions(coordinator.services.sessions, time.time())
            return [(row.member, row.hardware, row.state, row.own_samples, row.samples_per_second) for row in found]

        member.start()
        await eventually(lambda: online() == [("Ada", "8 cores", "training", 12, 3.5)])
        await member.leave()
        assert member.heard.connected == [True, False]
        await eventually(lambda: online() == [])


async def test_stopping_delivers_the_last_report(tmp_path: Path) -> None:
    """A report that is put just before the end is still sent and acknowledged before the goodbye."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.start()
        await eventually(lambda: member.heard.connected == [True])
        member.outbox.put(a_report(1), era=0, completed_at=time.time())
        await member.leave()
        assert len(member.outbox) == 0
        assert samples_of(coordinator) == {1: 32}


async def test_a_session_survives_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    """Reports made while the coordinator is away are delivered when it is back, each counted once."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.start()
        member.outbox.put(a_report(1), era=0, completed_at=time.time())
        await eventually(lambda: len(member.outbox) == 0)
        port = coordinator.server.port
        await coordinator.server.stop()
        await eventually(lambda: member.heard.connected == [True, False])
        member.outbox.put(a_report(2), era=0, completed_at=time.time())
        await coordinator.serve_again(port)
        await eventually(lambda: len(member.outbox) == 0)
        assert samples_of(coordinator) == {1: 32, 2: 32}
        assert member.heard.connected == [True, False, True]


async def test_a_report_whose_acknowledgement_was_lost_is_counted_once(tmp_path: Path) -> None:
    """It is sent again under its number in the next session, accepted again, and adds nothing."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        seq = member.outbox.put(a_report(1), era=0, completed_at=time.time())
        call = await greeted(member)
        for _ in range(2):
            wire = report_to_wire(seq, 0, time.time(), a_report(1))
            await call.write(control_pb2.PeerMessage(report=wire))
            assert (await next_of(call, "ack")).ack.accepted
        call.cancel()
        member.start()
        await eventually(lambda: len(member.outbox) == 0)
        assert samples_of(coordinator) == {1: 32}


async def test_a_refused_report_is_dropped_and_told_once(tmp_path: Path) -> None:
    """An implausible claim is not sent for ever: it leaves the outbox with one line for the person."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.outbox.put(a_report(1, samples=10**6), era=0, completed_at=time.time())
        member.outbox.put(a_report(1, samples=2**40), era=0, completed_at=time.time())
        member.outbox.put(a_report(1), era=0, completed_at=time.time())
        member.start()
        await eventually(lambda: len(member.outbox) == 0)
        assert [notice.level for notice in member.heard.notices] == ["warning", "warning"]
        assert "step 1" in member.heard.notices[0].text
        assert samples_of(coordinator) == {1: 32}
        assert [kind for kind, _ in coordinator.refusals()] == ["report", "report"]


async def test_an_impossible_presence_is_dropped_and_the_session_goes_on(tmp_path: Path) -> None:
    """One bad record never spoils the rest."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.presence = control_pb2.Presence(step=2**60, state="training", samples_per_second=float("nan"))
        member.start()
        await eventually(lambda: ("session", "bad-request") in coordinator.refusals())
        member.outbox.put(a_report(1), era=0, completed_at=time.time())
        await eventually(lambda: samples_of(coordinator) == {1: 32})


async def test_a_revocation_ends_the_session_of_the_revoked_and_reaches_the_others(tmp_path: Path) -> None:
    """The operator's command writes to the store; the revoked is told and leaves, everybody else gets the list."""
    async with (
        serving(tmp_path) as coordinator,
        joined(coordinator, tmp_path, "Ada") as ada,
        joined(coordinator, tmp_path, "Bo") as bo,
    ):
        ada.start()
        bo.start()
        await eventually(lambda: bool(ada.heard.connected and bo.heard.revocations))
        coordinator.services.membership.revoke("Ada", "test")
        assert ada.running is not None
        with pytest.raises(RevokedError, match="Ada"):
            await asyncio.wait_for(ada.running, 20)
        assert len(ada.heard.revoked) == 1
        await eventually(lambda: len(bo.heard.revocations) > 1)
        bo.credentials.store_revocations(bo.heard.revocations[-1])
        assert bo.credentials.is_revoked(ada.credentials.device_key.peer_id)
        assert bo.running is not None
        assert not bo.running.done()


async def test_a_revoked_device_is_told_when_it_comes_back(tmp_path: Path) -> None:
    """Who was away during the revocation learns it at the next hello, and stops trying."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        coordinator.services.membership.revoke("Ada", "test")
        member.start()
        assert member.running is not None
        with pytest.raises(RevokedError):
            await asyncio.wait_for(member.running, 20)


async def test_the_session_brings_a_new_token_before_the_old_one_is_old(tmp_path: Path) -> None:
    """At half of a token's life a new one comes down the session."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        before = member.credentials.access_token(time.time())
        member.start()
        await eventually(lambda: member.heard.connected == [True])
        coordinator.clock.ahead_s = 0.55 * 3600
        await eventually(lambda: bool(member.heard.tokens))
        assert member.credentials.access_token(coordinator.clock()).expires_at > before.expires_at + 1000


async def test_without_a_session_the_peer_renews_at_two_thirds(tmp_path: Path) -> None:
    """The peer looks after its token by itself, before it begins to fail."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        member.clock.ahead_s = 0.7 * 3600
        member.start()
        await eventually(lambda: bool(member.heard.tokens))
        assert coordinator.refusals() == []


async def test_an_expired_token_is_refused_at_hello(tmp_path: Path) -> None:
    """The coordinator opens no session on a token whose time is over, and records that."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        coordinator.clock.ahead_s = 3601.0
        with pytest.raises(ExpiredTokenError):
            await greeted(member)
        assert coordinator.refusals() == [("session", "expired-token")]


async def test_a_peer_whose_token_expired_meanwhile_renews_and_comes_back(tmp_path: Path) -> None:
    """After a coordinator's long absence the device's signature is enough to go on."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        coordinator.clock.ahead_s = 3601.0
        member.clock.ahead_s = 3551.0  # within the allowed skew; by it, the token is good for another while
        member.start()
        await eventually(lambda: member.heard.connected == [True])
        assert ("session", "expired-token") in coordinator.refusals()


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
        await call.write(control_pb2.PeerMessage(report=report_to_wire(1, 0, time.time(), a_report(1))))
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


async def test_a_flood_of_messages_is_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its pace a session's messages wait unread: here two are taken at once, the third in a very long time."""
    monkeypatch.setattr(server_side, "MESSAGES_AT_ONCE", 2.0)
    monkeypatch.setattr(server_side, "MESSAGES_PER_SECOND", 1e-6)
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        call = await greeted(member)
        for step in (1, 2, 3):
            await call.write(control_pb2.PeerMessage(report=report_to_wire(step, 0, time.time(), a_report(step))))
        for _ in range(2):
            assert (await next_of(call, "ack")).ack.accepted
        await asyncio.sleep(0.2)
        assert sorted(samples_of(coordinator)) == [1, 2]
        call.cancel()


async def test_what_only_a_person_can_mend_ends_the_session(tmp_path: Path) -> None:
    """A token of a foreign authority is not retried for ever."""
    async with (
        serving(tmp_path / "one") as coordinator,
        serving(tmp_path / "two") as stranger,
        joined(coordinator, tmp_path) as member,
        connected(stranger) as other_client,
    ):
        member.client = other_client
        member.start()
        assert member.running is not None
        with pytest.raises(TokenError, match="authority"):
            await asyncio.wait_for(member.running, 20)


def test_the_wait_before_a_retry_grows_to_its_limit_and_is_never_the_same() -> None:
    """Peers that lost the coordinator together do not come back together."""
    rng = random.Random(0)
    waits = [retry_delay_s(failures, 1.0, 30.0, rng) for failures in range(200)]
    assert all(0.1 <= wait <= 30.0 for wait in waits)
    assert max(waits[:3]) < 4.0 < max(waits[10:])
    assert len(set(waits)) == len(waits)


def test_renewal_is_due_at_two_thirds_of_the_lifetime() -> None:
    """Two hours before the end of a token that lives for six."""
    assert renewal_due_at(issued_at=1000.0, expires_at=1000.0 + 6 * 3600) == 1000.0 + 4 * 3600


async def greeted(member: Member, key: DeviceKey | None = None) -> Any:
    """A raw, welcomed session stream."""
    call = member.client.open_session()
    stream = SessionStream(call, member.outbox, lambda: None, member.heard.handlers(), QUICK)
    signer = key or member.credentials.device_key
    await stream.greet(Greeting("test", signer, member.credentials.token_jwt, "", ""))
    return call


async def next_of(call: Any, kind: str) -> control_pb2.CoordinatorMessage:
    """The next message of a kind."""
    while (message := await asyncio.wait_for(call.read(), 20)).WhichOneof("body") != kind:
        continue
    return message


async def drained(call: Any) -> None:
    """Read a stream to its end; raises why the coordinator ended it."""
    reader = SessionStream(call, None, lambda: None, Heard().handlers(), QUICK)  # type: ignore[arg-type]
    while await asyncio.wait_for(reader._read(), 20) is not None:
        continue
    raise UnreachableError("the stream ended in order")
