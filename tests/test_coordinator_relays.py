"""Which volunteers relay, and who hears of them."""

from __future__ import annotations

import random
from ipaddress import ip_address
from pathlib import Path

import pytest

from auth.credentials import Credentials
from coordinator.relays import relay_of, some_of
from coordinator.replicas import relays
from peer.messages import Ready
from peer.own_presence import OwnPresence
from peer.protocol import MAX_RELAYS
from tests.support.control_plane import connected, joined, serving
from tests.support.waiting import eventually

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
            await eventually("the relay is known", lambda: relays(services.sessions, services.clock()))
            assert list((await client.join(key)).relays) == list(presence.relays)
            assert list((await client.join(ada.credentials.device_key)).relays) == []
            await ada.leave()
            assert list((await client.join(key)).relays) == []
