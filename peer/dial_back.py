"""Whether others can open connections to this machine: tried, by letting the coordinator dial the address it sees.

The coordinator says a word that it has named over the session before, so that no stranger who knocks is taken for it.
It says it by TCP and in a datagram, at the ports where this peer is going to listen.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import psutil

from peer.control_client import ControlClient
from peer.protocol import LOWEST_DIALLED_PORT, WORD_BYTES
from peer.ways import Endpoint, IPAddress, Version, bind_alike

READ_TIMEOUT_S = 3.0
OTHERS_TIMEOUT_S = 1.0  # for the ways that are left, when the word has arrived by one
MAX_WORDS = 1_000  # that nobody has asked for


def own_addresses() -> frozenset[IPAddress]:
    """The IP addresses of this machine's interfaces."""
    entries = [entry for found in psutil.net_if_addrs().values() for entry in found]
    families = (socket.AF_INET, socket.AF_INET6)
    texts = (entry.address.partition("%")[0] for entry in entries if entry.family in families)
    return frozenset(ipaddress.ip_address(text) for text in texts)


@dataclass(frozen=True)
class Ears:
    """Where is being listened, and what is heard."""

    endpoints: tuple[Endpoint, ...]  # with their ports
    words: asyncio.Queue[tuple[Endpoint, bytes]] = field(default_factory=lambda: asyncio.Queue(MAX_WORDS))

    def hear(self, endpoint: Endpoint, word: bytes) -> None:
        """Keep it; what finds no room is lost, as all of it is from strangers then."""
        if not self.words.full():
            self.words.put_nowait((endpoint, word))

    def first(self, version: Version, transport: str) -> Endpoint | None:
        """The endpoint that the coordinator is asked to dial this way."""
        alike = (place for place in self.endpoints if (place.version, place.transport) == (version, transport))
        return next((place for place in alike if place.port >= LOWEST_DIALLED_PORT), None)


@asynccontextmanager
async def listening(endpoints: Sequence[Endpoint]) -> AsyncIterator[Ears]:
    """Listen at these endpoints, those that cannot be bound left out."""
    bound = bind_alike(endpoints)
    ears = Ears(tuple(endpoint for endpoint, _ in bound))
    async with AsyncExitStack() as stack:
        for endpoint, opened in bound:
            stack.callback(opened.close)
            if endpoint.transport == "tcp":
                server = await asyncio.start_server(_Knocks(endpoint, ears), sock=opened)
                stack.callback(server.close)
            else:
                datagrams = _Datagrams(endpoint, ears)
                transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: datagrams, sock=opened)  # noqa: B023 - called at once
                stack.callback(transport.close)
        yield ears


async def dialled_ways(client: ControlClient, ears: Ears, version: Version, timeout_s: float) -> frozenset[Endpoint]:
    """By which of these endpoints the coordinator's word arrives; strangers may knock meanwhile."""
    by_tcp, by_udp = ears.first(version, "tcp"), ears.first(version, "udp")
    wanted = {place for place in (by_tcp, by_udp) if place is not None}
    if not wanted:
        return frozenset()
    expected = await client.dial_back(by_tcp.port if by_tcp else 0, by_udp.port if by_udp else 0)
    heard: set[Endpoint] = set()
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while heard != wanted:
        try:
            endpoint, word = await asyncio.wait_for(ears.words.get(), deadline - clock())
        except asyncio.TimeoutError:
            break
        if word == expected and endpoint in wanted:
            heard.add(endpoint)
            deadline = min(deadline, clock() + OTHERS_TIMEOUT_S)
    return frozenset(heard)


@dataclass(frozen=True)
class _Knocks:
    """Hears what is said on connections to one endpoint."""

    endpoint: Endpoint
    ears: Ears

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            word = await asyncio.wait_for(reader.readexactly(WORD_BYTES), READ_TIMEOUT_S)
            self.ears.hear(self.endpoint, word)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # a stranger who knocks at the port
        finally:
            writer.close()


@dataclass(frozen=True)
class _Datagrams(asyncio.DatagramProtocol):
    """Hears the datagrams that come to one endpoint."""

    endpoint: Endpoint
    ears: Ears

    def datagram_received(self, data: bytes, _addr: object) -> None:
        """Keep it, if it is as long as a word."""
        if len(data) == WORD_BYTES:
            self.ears.hear(self.endpoint, data)
