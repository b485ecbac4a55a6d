"""Members' addresses: which ones peers tell, which the daemon is told of, and when a call is made again.

Real daemons and strangers: tests/system/test_addresses.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.utils.multiaddr import Multiaddr

from auth.swarm.addresses import MAX_ADDRESSES, are_addresses, is_reached, own_addresses

LOOPBACK, HOME, ROUTER = "/ip4/127.0.0.1/tcp/4001", "/ip4/192.168.1.7/tcp/4001", "/ip6/2001:db8::7/udp/4001/quic-v1"
TCP, PORT = b"\x06\x0f\xa1", 4001
RSA_ID = b"\x12\x20" + bytes(range(32))
RELAYED = b"\x04\xc6\x33\x64\x01" + TCP + b"\xa5\x03\x22" + RSA_ID + b"\xa2\x02"  # /ip4/.../p2p/.../p2p-circuit


def encoded(address: str) -> bytes:
    """An address as the daemon writes it."""
    return bytes(Multiaddr(address).to_bytes())


def daemon(*visible: bytes) -> Any:
    """A p2p daemon that is seen at these addresses."""

    async def identify() -> tuple[None, list[Multiaddr]]:
        return None, [Multiaddr(address) for address in visible]

    return SimpleNamespace(_client=SimpleNamespace(identify=identify))


def test_addresses_are_hosts_with_tcp_or_quic_and_perhaps_a_relay() -> None:
    """The daemon hears of no others, of no more than a few, and of nothing that is none."""
    good = [LOOPBACK, HOME, ROUTER, f"/dns4/run.example.org/tcp/{PORT}", f"/ip4/1.2.3.4/udp/{PORT}/quic-v1"]
    assert are_addresses([*map(encoded, good), RELAYED])
    assert are_addresses([RELAYED] * MAX_ADDRESSES)
    host = encoded("/ip4/1.2.3.4")
    no_address = [
        b"",
        host,
        host + TCP[:-1],
        host + TCP + b"x",
        b"\x04\x01" + TCP,
        RELAYED[:-2],
        RELAYED + RELAYED,
        HOME,
    ]
    for bad in ([], [RELAYED] * (MAX_ADDRESSES + 1), RELAYED, {RELAYED: 1}, None, *([each] for each in no_address)):
        assert not are_addresses(bad), bad
    for other in (f"/ip4/1.2.3.4/tcp/{PORT}/ws", f"/ip4/1.2.3.4/udp/{PORT}", "/unix/tmp%2Fsocket"):
        assert not are_addresses([encoded(other) if not other.startswith("/unix") else b"\x90\x03\x04/tmp"]), other


async def test_a_peer_tells_where_others_reach_it() -> None:
    """Not where only this machine does, if there is more, nor of transports that nobody dials; only so many."""
    home, router, loopback = map(encoded, (HOME, ROUTER, LOOPBACK))
    socket = encoded(f"/ip4/192.168.1.7/tcp/{PORT}/ws")
    assert await own_addresses(daemon(loopback, home, socket, router), relayed=False) == [home, router]
    assert await own_addresses(daemon(loopback), relayed=False) == [loopback]
    assert await own_addresses(daemon(), relayed=False) == []
    many = [encoded(f"/ip4/10.0.0.{number}/tcp/{PORT}") for number in range(MAX_ADDRESSES + 1)]
    assert await own_addresses(daemon(*many), relayed=False) == many[:MAX_ADDRESSES]
    assert await own_addresses(daemon(*many, RELAYED), relayed=True) == [RELAYED, *many[: MAX_ADDRESSES - 1]]


async def test_a_relayed_peer_is_nowhere_before_a_relay_takes_it() -> None:
    """Its own addresses lead no further than its home."""
    home = encoded(HOME)
    assert await own_addresses(daemon(home), relayed=True) == []
    assert await own_addresses(daemon(home, RELAYED), relayed=True) == [RELAYED, home]


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        ("failed to dial: failed to dial Qm: no addresses", 1),
        ("Connect failed. msg=failed to find any peer in table", 1),
        ("Connect failed. msg=routing: not found", 1),
        ("failed to negotiate protocol: protocols not supported: [x]", 0),
        ("stream reset", 0),
    ],
)
@pytest.mark.parametrize("reached", [False, True])
async def test_only_a_call_that_reached_nobody_is_made_again(error: str, asked: int, reached: bool) -> None:
    """And only if the peer has been reached since; any other may have been served."""
    sought: list[PeerID] = []
    peer = PeerID(RSA_ID)

    async def reach(peer_id: PeerID) -> bool:
        sought.append(peer_id)
        return reached

    assert await is_reached(SimpleNamespace(reach=reach), peer, P2PDaemonError(error)) == (reached and asked == 1)
    assert sought == [peer] * asked
    assert not await is_reached(SimpleNamespace(), peer, P2PDaemonError(error))
