"""Members' network addresses, published in the swarm's DHT, which serves only members.

By default, hivemind peers find each other through the p2p daemon's own DHT. That DHT is disabled:
it would reveal the addresses of all current and former peers to anyone. Instead, a peer's
addresses are stored with its record and token, signed like the record. If the daemon cannot reach a
peer, `MemberProtocol.reach` passes the peer's addresses to the daemon, and the call is retried.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2

MAX_ADDRESSES = 8
CONNECT_S = 10  # timeout in seconds for all addresses of a peer, including relay addresses
# Parts of the daemon's error messages for a peer without a known or reachable address.
UNREACHED = ("failed to dial", "failed to find any peer", "routing: not found")
# Binary multiaddr (https://github.com/multiformats/multiaddr): a host, TCP or QUIC, and an optional
# relay with an RSA key.
_HOST = rb"(?:\x04.{4}|\x29.{16}|[\x35-\x37][\x01-\x7f][A-Za-z0-9._-]{1,127})"
_TRANSPORT = rb"(?:\x06..|\x91\x02..\xcd\x03)"
_CIRCUIT = b"\xa2\x02"
_RELAY = rb"(?:\xa5\x03\x22\x12\x20.{32}" + _CIRCUIT + rb")?"
_ADDRESS = re.compile(_HOST + _TRANSPORT + _RELAY, re.DOTALL)
_LOOPBACK = (b"\x04\x7f", b"\x29" + bytes(15) + b"\x01")
Reach = Callable[[PeerID], Awaitable[bool]]


def are_addresses(value: object) -> bool:
    """Return whether a value is a list of well-formed addresses that the p2p daemon accepts."""
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_ADDRESSES
        and all(isinstance(address, bytes) and _ADDRESS.fullmatch(address) for address in value)
    )


async def own_addresses(p2p: P2P, *, relayed: bool) -> list[bytes]:
    """Return this peer's addresses as known to its daemon.

    If the peer is `relayed`, the list is empty until a relay has accepted the peer. Loopback
    addresses are returned only if there are no other addresses.
    """
    _, visible = await p2p._client.identify()
    addresses = [address.to_bytes() for address in visible if _ADDRESS.fullmatch(address.to_bytes())]
    addresses.sort(key=_through_relay, reverse=True)
    if relayed and not any(map(_through_relay, addresses)):
        return []
    abroad = [address for address in addresses if not address.startswith(_LOOPBACK)]
    return (abroad or addresses)[:MAX_ADDRESSES]


def _through_relay(address: bytes) -> bool:
    return address.endswith(_CIRCUIT)


async def connect(p2p: P2P, peer_id: PeerID, addresses: Sequence[bytes]) -> None:
    """Connect the daemon to a peer at one of the addresses. Raises `P2PDaemonError` on failure."""
    wanted = p2pd_pb2.ConnectRequest(peer=peer_id.to_bytes(), addrs=addresses, timeout=CONNECT_S)
    reader, writer = await p2p._client.control.daemon_connector.open_connection()
    with closing(writer):
        await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=wanted))
        answer = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, answer)
    raise_if_failed(answer)


async def is_reached(p2p: Any, peer_id: PeerID, error: P2PDaemonError) -> bool:
    """Reconnect to a peer that a call could not reach; return whether the call can be retried."""
    reach: Reach | None = getattr(p2p, "reach", None)
    return reach is not None and any(reason in str(error) for reason in UNREACHED) and await reach(peer_id)
