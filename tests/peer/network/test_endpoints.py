"""Addresses to dial and to listen on: IPv4 and IPv6, TCP and QUIC."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from peer.network.endpoints import (
    MAX_DIALLED,
    Endpoint,
    are_keepers,
    bind_alike,
    bindable,
    everywhere,
    is_peer_address,
    one_for_each_peer,
    read_endpoint,
    ways_from,
)

ID = "12D3KooWKaFFZoDcaeoXcKKtGG79gpXfkDnuMKKy8wSkXiy3gTBu"

HERE = "127.0.0.1"


@pytest.mark.parametrize(
    "maddr",
    ["/ip4/0.0.0.0/tcp/31338", "/ip4/192.0.2.1/udp/9/quic-v1", "/ip6/::/tcp/0", "/ip6/2001:db8::1/udp/9/quic-v1"],
)
def test_an_endpoint_is_read_and_written_alike(maddr: str) -> None:
    """For both IP versions and transports; a peer's name after it is no part of it."""
    endpoint = read_endpoint(maddr)
    assert endpoint is not None
    assert endpoint.maddr == maddr
    assert read_endpoint(f"{maddr}/p2p/{ID}") == endpoint


@pytest.mark.parametrize(
    "maddr",
    ["/dns/a.org/tcp/1", "/ip4/::/tcp/1", "/ip4/0.0.0.0/udp/1", "/ip4/1.2.3.4/tcp/70000", "/ip4/1.2.3.4/tcp/1/quic-v1"],
)
def test_what_is_no_endpoint_of_ours_is_none(maddr: str) -> None:
    """Names, mixed versions, other transports and impossible ports."""
    assert read_endpoint(maddr) is None


@pytest.mark.parametrize(
    ("maddr", "good"),
    [
        (f"/ip4/192.0.2.1/tcp/1/p2p/{ID}", True),
        (f"/dns/a.org/udp/1/quic-v1/p2p/{ID}", True),
        ("/ip4/192.0.2.1/tcp/1", False),
        (f"/unix/etc/passwd/p2p/{ID}", False),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{ID}/p2p-circuit", False),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{ID},/ip4/192.0.2.2/tcp/1/p2p/{ID}", False),
        (f"/dns/{'a' * 400}/tcp/1/p2p/{ID}", False),
    ],
)
def test_only_plain_addresses_of_peers_are_taken_from_the_network(maddr: str, good: bool) -> None:
    """No sockets of files, no circuits, no lists, nothing long."""
    assert is_peer_address(maddr) is good


def test_each_peer_is_named_once() -> None:
    """By its first address, in the order given."""
    maddrs = [f"/ip4/192.0.2.1/tcp/1/p2p/{ID}", f"/ip6/::1/tcp/1/p2p/{ID}", "/ip4/192.0.2.2/tcp/1/p2p/other"]
    assert one_for_each_peer(maddrs) == (maddrs[0], maddrs[2])


def test_all_addresses_mean_both_versions() -> None:
    """One address means its own."""
    assert [(way.version, way.transport) for way in ways_from("::", 9)] == [(4, "tcp"), (6, "tcp")]
    assert [(way.version, way.transport) for way in ways_from("::", 9, ("tcp", "udp"))] == [
        (4, "tcp"),
        (4, "udp"),
        (6, "tcp"),
        (6, "udp"),
    ]
    assert {way.version for way in ways_from("2001:db8::1", 9)} == {6}


def test_ways_that_are_taken_or_lacking_are_left_out() -> None:
    """A taken UDP port leaves TCP; an address that this machine has not leaves nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HERE, 0))
        found = bindable(ways_from(HERE, taken.getsockname()[1], ("tcp", "udp")))
    assert [way.transport for way in found] == ["tcp"]
    assert bindable(ways_from("2001:db8::1", 0)) == ()


def test_any_port_is_one_number_for_all_ways() -> None:
    """So that a router has one rule to forward it."""
    ways = everywhere()
    with ExitStack() as stack:
        bound = bind_alike(ways)
        for _, opened in bound:
            stack.callback(opened.close)
        assert [endpoint.transport for endpoint, _ in bound] == [way.transport for way in ways]
        assert len({endpoint.port for endpoint, _ in bound}) == 1


def test_a_port_that_was_asked_for_stays() -> None:
    """One that is taken is left out."""
    with socket.create_server((HERE, 0)) as taken:
        assert bind_alike([Endpoint(4, "tcp", HERE, taken.getsockname()[1])]) == ()


GOOD = "/ip4/192.0.2.1/tcp/31337/p2p/QmPeer"


@pytest.mark.parametrize(
    ("maddrs", "good"),
    [
        ([GOOD, "/ip6/2001:db8::1/udp/31337/quic-v1/p2p/QmPeer", "/dns/run.example/tcp/31337/p2p/QmPeer"], True),
        ([GOOD, "/ip4/192.0.2.1/tcp/31337"], False),
        (["/ip4/192.0.2.1/tcp/31337/p2p/QmRelay/p2p-circuit/p2p/QmPeer"], False),
        (["/unix/tmp/socket/p2p/QmPeer"], False),
        ([GOOD + "\n"], False),
        ([""], False),
        ([GOOD] * (MAX_DIALLED + 1), False),
    ],
)
def test_only_a_keepers_direct_addresses_are_told_to_the_daemon(maddrs: list[str], good: bool) -> None:
    """By either version of IP or by name; not relays, files or a flood, whatever a coordinator says."""
    assert are_keepers(maddrs) is good
