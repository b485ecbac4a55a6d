"""Relays: an address counts by rule, and joiners hear of the relays at all replicas over one PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest

from auth.credentials import Credentials
from auth.errors import QuarantinedError, RequestError, RevokedError
from auth.keys import DeviceKey, challenge_bytes
from coordinator.context.changes import listening
from coordinator.context.services import open_run_services
from coordinator.control.relays import (
    FORGOTTEN_S,
    ended_elsewhere,
    forget_relays_of_the_gone,
    offer_relay,
    relay_of,
    relays,
    some_of,
)
from coordinator.ledger.sessions import close_session, open_session
from coordinator.members.quarantine import quarantine_device
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import Database
from coordinator.store.notify import Topic
from coordinator.store.service_models import RelayOffer
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.snapshot import Snapshot, take_snapshot
from peer.agent.presence import OwnPresence
from peer.config.run import RunConfig
from peer.protocol import MAX_RELAYS, control_pb2
from peer.protocol.errors import error_from_rpc
from peer.reporting.messages import Ready
from tests.support.control_plane import (
    Member,
    SteppedClock,
    TestCoordinator,
    a_report,
    connected,
    joined,
    serving,
    start_server,
    write_status,
)
from tests.support.crowds import touch
from tests.support.postgres import new_database
from tests.support.raw_sessions import drained, greeted
from tests.support.receipts import keeper_confirms
from tests.support.waiting import PATIENCE_S, eventually

NOW = 1_800_000_000.0

LONG_S = 3600.0

PAUSED: dict[str, Any] = {"step": 0, "own_samples": 0, "samples_per_second": 0.0, "state": "paused"}


@dataclass(frozen=True)
class Replicas:
    """Two services of one run."""

    first: TestCoordinator
    second: TestCoordinator


@asynccontextmanager
async def replica(directory: RunDirectory) -> AsyncIterator[TestCoordinator]:
    """A service with its own connections to the run's database."""
    clock = SteppedClock()
    with open_run_services(directory, clock) as services:
        async with listening(services.database.engine, services.bell):
            coordinator = TestCoordinator(directory, services, await start_server(directory, services, 0), clock)
            try:
                yield coordinator
            finally:
                await coordinator.server.stop()


@asynccontextmanager
async def two_replicas(path: Path) -> AsyncIterator[Replicas]:
    """Served for the time of the block."""
    with new_database() as address:
        config = RunConfig.from_mapping({"run": {"name": "test"}})
        directory = RunDirectory.create(path / "run", config, Settings(bind_host="127.0.0.1", database_url=address))
        async with replica(directory) as first, replica(directory) as second:
            yield Replicas(first, second)


async def ended_with(member: Member) -> BaseException | None:
    """How the member's own session came to its end."""
    assert member.running is not None
    await asyncio.wait({member.running}, timeout=PATIENCE_S)
    return member.running.exception()


async def test_a_challenge_of_one_is_answered_at_the_other_once(tmp_path: Path) -> None:
    """A balancer may send each call elsewhere; what was answered here is answered everywhere."""
    async with (
        two_replicas(tmp_path) as run,
        connected(run.first) as first,
        connected(run.second) as second,
    ):
        key = DeviceKey.load_or_create(tmp_path / "key")
        nonce, receipt_key = (await first.greet()).nonce, key.receipt_key("test").public_bytes
        request = control_pb2.JoinRequest(
            nonce=nonce,
            public_key=key.public_key,
            receipt_key=receipt_key,
            signature=key.sign(challenge_bytes("join", "test", nonce, key.public_key, receipt_key)),
            invite_code=run.first.invite("Ada"),
        )
        assert (await second._stub.Join(request)).member == "Ada"
        for client in (first, second):
            with pytest.raises(RequestError, match="answered already"):
                await refused(client._stub.Join(request))


async def refused(call: Any) -> None:
    """Raise what a raw call was refused with, as our own error."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def test_a_device_that_comes_back_elsewhere_is_here_once(tmp_path: Path) -> None:
    """Its old session ends at the replica that holds it, with the same words as if it were the same."""
    async with two_replicas(tmp_path) as run, joined(run.first, tmp_path) as ada, connected(run.second) as client:
        old = await greeted(ada)
        ada.client, at_first = client, ada.client
        new = await greeted(ada)
        with pytest.raises(RequestError, match="twice"):
            await drained(old)
        new.cancel()
        ada.client = at_first


async def test_who_is_shut_out_at_one_is_sent_away_by_the_other(tmp_path: Path) -> None:
    """A revocation and a quarantine reach sessions open elsewhere, and the list reaches everybody."""
    async with (
        two_replicas(tmp_path) as run,
        joined(run.first, tmp_path) as ada,
        joined(run.second, tmp_path, "Bob") as bob,
        joined(run.second, tmp_path, "Eve") as eve,
    ):
        for member in (ada, bob, eve):
            member.start()
            await eventually(
                "each member has heard where it stands", lambda member=member: bool(member.heard.standings)
            )
        services = run.first.services
        services.membership.revoke("Bob", "sends garbage")
        assert isinstance(await ended_with(bob), RevokedError)
        device = eve.credentials.access_token(time.time()).device_id
        quarantine_device(services.database, "Eve", device, "tests", "os:grace", services.clock())
        assert isinstance(await ended_with(eve), QuarantinedError)
        shut_out = [member.credentials.device_key.peer_id for member in (bob, eve)]
        await eventually("Ada knows of both", lambda: all(map(ada.credentials.is_revoked, shut_out)))


async def test_a_report_to_one_moves_the_standing_at_the_other(tmp_path: Path) -> None:
    """Everybody's rank is among all, wherever they report."""
    async with (
        two_replicas(tmp_path) as run,
        joined(run.first, tmp_path) as ada,
        joined(run.second, tmp_path, "Bob") as bob,
    ):
        write_status(run.first, "/ip4/127.0.0.1/tcp/1/p2p/Qm")
        ada.start()
        bob.start()
        await eventually(
            "both members have heard where they stand", lambda: bool(ada.heard.standings and bob.heard.standings)
        )
        bob.outbox.put(a_report(1), completed_at=time.time())
        await eventually("Bob's outbox is empty", lambda: len(bob.outbox) == 0)
        services = run.second.services
        keeper_confirms(services.database, services.membership, services.ledger, "test", 1)
        await eventually(
            "both members have heard of Bob's step",
            lambda: (ada.heard.standings[-1].rank, bob.heard.standings[-1].rank) == (2, 1),
        )


async def test_a_joiner_at_one_hears_of_relays_at_the_other(tmp_path: Path) -> None:
    """All volunteers are one swarm."""
    async with (
        two_replicas(tmp_path) as run,
        joined(run.first, tmp_path) as ada,
        connected(run.second) as client,
    ):
        address = f"/ip4/127.0.0.1/tcp/4001/p2p/{ada.credentials.device_key.peer_id}"
        presence = control_pb2.Presence(state="training", relay_addresses=[address])
        ada.presence = presence
        ada.start()
        services = run.second.services
        await eventually("the relay is known", lambda: relays(services.database, services.clock()) == [address])
        reply = await client.join(DeviceKey.load_or_create(tmp_path / "key"), run.second.invite("Bob"))
        assert list(reply.relays) == [address]


async def test_pages_at_both_show_at_once_what_the_keeper_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hear of it: without, they would look again after an hour."""
    monkeypatch.setattr("coordinator.web.state.live.REFRESH_S", LONG_S)
    async with two_replicas(tmp_path) as run:
        pages = [live_page(coordinator) for coordinator in (run.first, run.second)]
        async with pages[0].refreshing(), pages[1].refreshing():
            write_status(run.first, "/ip4/127.0.0.1/tcp/1/p2p/Qm")
            await eventually("both pages know the swarm", lambda: all(page.current.swarm is not None for page in pages))


def live_page(coordinator: TestCoordinator) -> LiveSnapshot:
    def take(before: Snapshot | None) -> Snapshot:
        return take_snapshot(coordinator.services, before)

    return LiveSnapshot(take, coordinator.services.bell.ear(Topic.PROGRESS))


@pytest.mark.usefixtures("members")
def test_a_relay_is_offered_while_its_device_is_here(database: Database) -> None:
    """Taken back, gone silent or gone, it is named no longer; and its address is not kept."""
    stays = {name: open_session(database, name, "", "", NOW) for name in ("ada-1", "ada-2")}
    for name, stay in stays.items():
        offer_relay(database, stay, f"/{name}")
    assert sorted(relays(database, NOW)) == ["/ada-1", "/ada-2"]
    offer_relay(database, stays["ada-1"], "")
    assert relays(database, NOW) == ["/ada-2"]
    offer_relay(database, stays["ada-1"], "/ada-1")
    close_session(database, stays["ada-2"], NOW + 1)
    assert relays(database, NOW + 1) == ["/ada-1"]
    assert relays(database, NOW + 60) == []


@pytest.mark.usefixtures("members")
def test_what_a_killed_replica_has_left_is_forgotten(database: Database) -> None:
    """The address of a device that is silent for minutes goes; of one that was silent for a moment it stays."""
    stays = {name: open_session(database, name, "", "", NOW) for name in ("ada-1", "ada-2")}
    for name, stay in stays.items():
        offer_relay(database, stay, f"/{name}")
    touch(database, stays["ada-1"], **PAUSED, now=NOW + 60)
    forget_relays_of_the_gone(database, NOW + FORGOTTEN_S)
    for stay in stays.values():
        touch(database, stay, **PAUSED, now=NOW + FORGOTTEN_S)
    assert relays(database, NOW + FORGOTTEN_S) == ["/ada-1"]


@pytest.mark.usefixtures("members")
def test_a_device_that_comes_back_has_left_its_offer(database: Database) -> None:
    """It says again whether it relays."""
    offer_relay(database, open_session(database, "ada-1", "", "", NOW), "/ada-1")
    open_session(database, "ada-1", "", "", NOW + 1)
    with database() as session:
        assert session.query(RelayOffer).count() == 0


@pytest.mark.usefixtures("members")
def test_sessions_that_another_replaced_are_found(database: Database) -> None:
    """Of any number of open ones."""
    first, other = open_session(database, "ada-1", "", "", NOW), open_session(database, "ada-2", "", "", NOW)
    many = [f"{number:032x}" for number in range(1200)]
    assert ended_elsewhere(database, [first, *many, other]) == set()
    second = open_session(database, "ada-1", "", "", NOW + 1)
    assert ended_elsewhere(database, [*many, first, second, other]) == {first}
    assert ended_elsewhere(database, []) == set()


ID = "12D3KooWKaFFZoDcaeoXcKKtGG79gpXfkDnuMKKy8wSkXiy3gTBu"

OTHER = "12D3KooWQJNRsRgC65NXgWCgawvsTkTRP81VgbfRTSsSyyAuXhjT"

CALLER = ip_address("192.0.2.1")

GOOD = f"/ip4/192.0.2.1/tcp/4001/p2p/{ID}"


def test_the_first_good_address_counts() -> None:
    """By TCP, where the coordinator sees the volunteer."""
    assert relay_of([f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{ID}", GOOD], ID, CALLER) == GOOD


@pytest.mark.parametrize(
    "claimed",
    [
        f"/ip4/192.0.2.9/tcp/4001/p2p/{ID}",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{OTHER}",
        f"/dns/a.org/tcp/4001/p2p/{ID}",
        "/ip4/192.0.2.1/tcp/4001",
        f"{GOOD},{GOOD}",
        "",
    ],
)
def test_what_the_coordinator_cannot_vouch_for_does_not_count(claimed: str) -> None:
    """Another host, another peer, a name, no peer, a list: joiners would open connections to it."""
    assert relay_of([claimed], ID, CALLER) == ""


def test_a_few_others_are_named() -> None:
    """Never more than the bound, and never the joiner itself."""
    many = [f"/ip4/192.0.2.{n}/tcp/1/p2p/peer{n}" for n in range(50)]
    named = some_of([*many, "", GOOD], ID, random.Random(0))
    assert len(set(named)) == MAX_RELAYS
    assert some_of([GOOD, ""], ID, random.Random(0)) == ()
    assert some_of([GOOD], OTHER, random.Random(0)) == (GOOD,)


async def test_a_joiner_hears_of_a_volunteer_that_relays(tmp_path: Path) -> None:
    """While that one is in the swarm; without it, of nobody."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as ada:
        presence = OwnPresence("trainer")
        peer_id = ada.credentials.device_key.peer_id
        presence.relays = (f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id}",)
        presence.hear(Ready(peer_id, 4, "cpu"))
        ada.presence = presence.now
        key, invite = Credentials(tmp_path / "bo").device_key, coordinator.invite("Bo")
        async with connected(coordinator) as client:
            assert list((await client.join(key, invite)).relays) == []
            ada.start()
            services = coordinator.services
            await eventually("the relay is known", lambda: relays(services.database, services.clock()))
            assert list((await client.join(key)).relays) == list(presence.relays)
            assert list((await client.join(ada.credentials.device_key)).relays) == []
            await ada.leave()
            assert list((await client.join(key)).relays) == []
