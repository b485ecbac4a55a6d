"""Endpoints for connections to a peer: IPv4 or IPv6, with TCP or QUIC (over UDP).

A machine's endpoints are found by binding sockets, not by reading its configuration. A peer's
addresses are tested (`best_ways`) before libp2p, which prefers QUIC, receives them. On rate-limited
connections, averaging took several times longer over QUIC than over TCP, because the p2p daemon
processes each small packet itself. QUIC is therefore used only if TCP fails.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

CONNECT_TIMEOUT_S = 2.0
MAX_DIALLED = 16
_KEEPER = re.compile(
    r"/(ip4|ip6|dns|dns4|dns6)/[A-Za-z0-9._:%-]{1,253}/(tcp/\d{1,5}|udp/\d{1,5}/quic-v1)/p2p/\w{1,128}"
)
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Version = Literal[4, 6]
Transport = Literal["tcp", "udp"]
ANYWHERE = {4: "0.0.0.0", 6: "::"}  # noqa: S104  # other machines must reach this peer
TRANSPORTS = {"tcp": "TCP", "udp": "QUIC"}  # transport names in messages
MAX_ADDRESS_CHARS = 300
_TRIES = 8  # number of attempts to find a port free for all endpoints
_HOST = r"/(?:ip4|ip6|dns|dns4|dns6)/[A-Za-z0-9.:_-]{1,253}"
_PEER_ADDRESS = re.compile(rf"({_HOST})/(?:tcp/\d{{1,5}}|udp/\d{{1,5}}/quic(?:-v1)?)/p2p/([A-Za-z0-9]{{20,100}})")
_ENDPOINT = re.compile(r"/ip([46])/([0-9A-Fa-f:.]{2,45})/(tcp|udp)/(\d{1,5})(?:/quic-v1)?(?:/p2p/[A-Za-z0-9]{20,100})?")


@dataclass(frozen=True)
class Endpoint:
    """An address and port to listen on or connect to, over one IP version and transport."""

    version: Version
    transport: Transport
    host: str
    port: int  # 0 for any port

    @property
    def maddr(self) -> str:
        """The endpoint as a libp2p multiaddress."""
        suffix = "/quic-v1" if self.transport == "udp" else ""
        return f"/ip{self.version}/{self.host}/{self.transport}/{self.port}{suffix}"

    def bind(self) -> socket.socket:
        """Return a socket bound to the endpoint; a TCP socket also listens. Raises `OSError`."""
        family = socket.AF_INET if self.version == 4 else socket.AF_INET6
        kind = socket.SOCK_STREAM if self.transport == "tcp" else socket.SOCK_DGRAM
        bound = socket.socket(family, kind)
        try:
            if self.version == 6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if self.transport == "tcp":  # bind even if old connections are in TIME_WAIT
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
            if self.transport == "tcp":
                bound.listen()
        except OSError:
            bound.close()
            raise
        return bound


def read_endpoint(maddr: str) -> Endpoint | None:
    """Parse a multiaddress, or return None if it has a DNS name, or neither TCP nor QUIC."""
    match = _ENDPOINT.fullmatch(maddr)
    if match is None:
        return None
    version, host, transport, port = match.groups()
    if ("/quic" in maddr) != (transport == "udp") or int(port) > 65535:
        return None
    try:
        if ipaddress.ip_address(host).version != int(version):
            return None
    except ValueError:
        return None
    return Endpoint(4 if version == "4" else 6, "tcp" if transport == "tcp" else "udp", host, int(port))


def is_peer_address(maddr: str) -> bool:
    """Return whether a multiaddress from the network is a well-formed peer address."""
    return len(maddr) <= MAX_ADDRESS_CHARS and _PEER_ADDRESS.fullmatch(maddr) is not None


def one_for_each_peer(maddrs: Sequence[str]) -> tuple[str, ...]:
    """Keep only the first address of each peer, because libp2p hangs if a relay is listed twice."""
    return tuple({maddr.rpartition("/p2p/")[2]: maddr for maddr in reversed(maddrs)}.values())[::-1]


def ways_from(host: str, port: int, transports: Sequence[Transport] = ("tcp",)) -> tuple[Endpoint, ...]:
    """Return the endpoints at a host; 0.0.0.0 and :: both mean all addresses of both IP versions."""
    versions: tuple[Version, ...] = (4, 6)
    hosts = ANYWHERE if host in ANYWHERE.values() else {ipaddress.ip_address(host).version: host}
    return tuple(
        Endpoint(version, transport, hosts[version], port)
        for version in versions
        if version in hosts
        for transport in transports
    )


def bindable(endpoints: Collection[Endpoint]) -> tuple[Endpoint, ...]:
    """Return the endpoints on which this machine can currently listen."""
    return tuple(endpoint for endpoint in endpoints if _can_bind(endpoint))


def everywhere() -> tuple[Endpoint, ...]:
    """Return TCP endpoints with any port, one for each IP version of this machine."""
    return bindable(ways_from(ANYWHERE[4], 0))


def bind_alike(endpoints: Sequence[Endpoint]) -> tuple[tuple[Endpoint, socket.socket], ...]:
    """Bind as many endpoints as possible; those with port 0 share one port if possible."""
    best: tuple[tuple[Endpoint, socket.socket], ...] = ()
    for _ in range(_TRIES):
        bound = tuple(_bind_all(endpoints))
        if len(bound) > len(best):
            best, bound = bound, best
        for _, unused in bound:
            unused.close()
        if len(best) == len(endpoints) or all(endpoint.port for endpoint in endpoints):
            break
    return best


def _bind_all(endpoints: Sequence[Endpoint]) -> Iterator[tuple[Endpoint, socket.socket]]:
    port = 0
    for endpoint in endpoints:
        wanted = replace(endpoint, port=endpoint.port or port)
        with suppress(OSError):
            bound = wanted.bind()
            port = port or (0 if endpoint.port else int(bound.getsockname()[1]))
            yield replace(endpoint, port=int(bound.getsockname()[1])), bound


def _can_bind(endpoint: Endpoint) -> bool:
    try:
        endpoint.bind().close()
    except OSError:
        return False
    return True


async def answering(maddrs: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses whose TCP port currently accepts connections."""
    tried = maddrs[:MAX_DIALLED]
    answers = await asyncio.gather(*map(_answers, tried))
    return tuple(maddr for maddr, answers_now in zip(tried, answers, strict=True) if answers_now)


async def best_ways(maddrs: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that accept TCP; if none do, return all, because QUIC may work."""
    return await answering(maddrs) or tuple(maddrs)


def are_keepers(maddrs: Sequence[str]) -> bool:
    """Return whether all addresses are well-formed keeper addresses, safe for the p2p daemon."""
    return len(maddrs) <= MAX_DIALLED and all(_KEEPER.fullmatch(maddr) is not None for maddr in maddrs)


async def _answers(maddr: str) -> bool:
    parts = maddr.split("/")  # "", "ip4", host, "tcp", port, ...
    if len(parts) < 5 or parts[3] != "tcp" or not parts[4].isdecimal():
        return False
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts[2], int(parts[4])), CONNECT_TIMEOUT_S)
    except (OSError, OverflowError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
