"""What a peer dials."""

from __future__ import annotations

import pytest

from peer.dialling import MAX_DIALLED, are_keepers

GOOD = "/ip4/192.0.2.1/tcp/31337/p2p/QmPeer"


@pytest.mark.parametrize(
    "maddr", [GOOD, "/ip6/2001:db8::1/udp/31337/quic-v1/p2p/QmPeer", "/dns/run.example/tcp/31337/p2p/QmPeer"]
)
def test_a_keepers_addresses_are_direct_ones(maddr: str) -> None:
    """By either version of IP or by name, by TCP or QUIC."""
    assert are_keepers([maddr, GOOD])


@pytest.mark.parametrize(
    "maddrs",
    [
        [GOOD, "/ip4/192.0.2.1/tcp/31337"],
        ["/ip4/192.0.2.1/tcp/31337/p2p/QmRelay/p2p-circuit/p2p/QmPeer"],
        ["/unix/tmp/socket/p2p/QmPeer"],
        [GOOD + "\n"],
        [""],
        [GOOD] * (MAX_DIALLED + 1),
    ],
)
def test_nothing_else_is_told_to_the_daemon(maddrs: list[str]) -> None:
    """Not relays, files or a flood, whatever a coordinator says."""
    assert not are_keepers(maddrs)
