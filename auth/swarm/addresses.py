"""Members' network addresses, published in the swarm's DHT, which serves members only.

The p2p daemon has a DHT of its own, in which hivemind's peers find each other. It would give
anybody the address of every peer, even of one that has left, so it is switched off here. A peer's
addresses are stored beside its record and its token, and signed like the record. If the daemon
cannot reach a peer, the call is repeated after the daemon has received the peer's addresses
(`MemberProtocol.reach`).
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
CONNECT_S = 10  # for all addresses of a peer together, which may include a relay's
# Parts of the daemon's errors for a peer without a known address, or at none of its addresses.
UNREACHED = ("failed to dial", "failed to find any peer", "routing: not found")
# https://github.com/multiformats/multiaddr in bytes: a host, TCP or QUIC, and optionally a relay
# with an RSA key
_HOST = rb"(?:\x04.{4}|\x29.{16}|[\x35-\x37][\x01-\x7f][A-Za-z0-9._-]{1,127})"
_TRANSPORT = rb"(?:\x06..|\x91\x02..\xcd\x03)"
_CIRCUIT = b"\xa2\x02"
_RELAY = rb"(?:\xa5\x03\x22\x12\x20.{32}" + _CIRCUIT + rb")?"
_ADDRESS = re.compile(_HOST + _TRANSPORT + _RELAY, re.DOTALL)
_LOOPBACK = (b"\x04\x7f", b"\x29" + bytes(15) + b"\x01")
Reach = Callable[[PeerID], Awaitable[bool]]


def are_addresses(value: object) -> bool:
    """Return whether a value is a list of well-formed addresses, fit for the p2p daemon."""
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_ADDRESSES
        and all(isinstance(address, bytes) and _ADDRESS.fullmatch(address) for address in value)
    )


async def own_addresses(p2p: P2P, *, relayed: bool) -> list[bytes]:
    """Return this peer's addresses, as its daemon knows them.

    A relayed peer has none before a relay accepts it. Loopback addresses are returned only if there
    are no others.
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
    """Connect the daemon to a peer at one of these addresses. Raises `P2PDaemonError` if it fails."""
    wanted = p2pd_pb2.ConnectRequest(peer=peer_id.to_bytes(), addrs=addresses, timeout=CONNECT_S)
    reader, writer = await p2p._client.control.daemon_connector.open_connection()
    with closing(writer):
        await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=wanted))
        answer = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, answer)
    raise_if_failed(answer)


async def is_reached(p2p: Any, peer_id: PeerID, error: P2PDaemonError) -> bool:
    """Return whether to repeat a call that failed with this error: the peer is reached now."""
    reach: Reach | None = getattr(p2p, "reach", None)
    return reach is not None and any(reason in str(error) for reason in UNREACHED) and await reach(peer_id)
