"""Whether others can open connections to this machine: tried, by letting the coordinator dial the address it sees.

The coordinator says a word that it has named over the session before, so that no stranger who knocks is taken for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psutil

from peer.control_client import ControlClient
from peer.place import IPAddress
from peer.protocol import WORD_BYTES

_TCP_PORT = re.compile(r"/tcp/(\d+)")
READ_TIMEOUT_S = 3.0


def listening_port(listen: Sequence[str]) -> int:
    """The TCP port of the first of these libp2p addresses that has one; 0 for any."""
    ports = [int(match.group(1)) for address in listen if (match := _TCP_PORT.search(address))]
    return ports[0] if ports else 0


def own_addresses() -> frozenset[IPAddress]:
    """The IP addresses of this machine's interfaces."""
    entries = [entry for found in psutil.net_if_addrs().values() for entry in found]
    families = (socket.AF_INET, socket.AF_INET6)
    texts = (entry.address.partition("%")[0] for entry in entries if entry.family in families)
    return frozenset(ipaddress.ip_address(text) for text in texts)


@asynccontextmanager
async def listening(port: int, words: asyncio.Queue[bytes]) -> AsyncIterator[int]:
    """Put what is said on connections to `port` (0: any) into the queue; yields the port."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            words.put_nowait(await asyncio.wait_for(reader.readexactly(WORD_BYTES), READ_TIMEOUT_S))
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # a stranger who knocks at the port
        finally:
            writer.close()

    listener = _bind(port)
    server = await asyncio.start_server(hear, sock=listener)
    try:
        yield listener.getsockname()[1]
    finally:
        server.close()


def _bind(port: int) -> socket.socket:
    """A socket on all addresses, of both families where the system has both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


async def is_dialled(client: ControlClient, port: int, words: asyncio.Queue[bytes], timeout_s: float) -> bool:
    """Whether the coordinator's word arrives; strangers may knock meanwhile."""
    expected = await client.dial_back(port)

    async def hear_it() -> None:
        while await words.get() != expected:
            pass

    try:
        await asyncio.wait_for(hear_it(), timeout_s)
    except asyncio.TimeoutError:
        return False
    return True
