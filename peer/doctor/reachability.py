"""Stage `reachability`: whether other peers can open connections to this machine, and what stands before it if not.

Tried, not guessed: the coordinator dials the address that it sees, at a port where this machine listens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from enum import Enum

import psutil

from auth.errors import ManyhandsError
from peer.control_client import ControlClient
from peer.doctor.context import Context
from peer.doctor.description import IPAddress
from peer.doctor.findings import Outcome, failed, ok, skipped, warning
from peer.protocol import WORD_BYTES

_TCP_PORT = re.compile(r"/tcp/(\d+)")
READ_TIMEOUT_S = 3.0
CARRIER_NETWORK = ipaddress.ip_network("100.64.0.0/10")


class Position(str, Enum):
    """Where a machine stands, seen from the coordinator."""

    OPEN = "open"  # its own address, incoming connections arrive
    FIREWALL = "firewall"  # its own address, incoming connections do not arrive
    FORWARDED = "forwarded port"  # behind a router that lets connections to this port through
    NAT = "NAT"  # behind a router that does not
    CARRIER_NAT = "carrier-grade NAT"  # behind the provider's router, where nobody can forward a port


async def check_reachability(context: Context) -> Outcome:
    """Listen where the peer would, and let the coordinator dial."""
    assert context.client is not None
    assert context.description is not None
    port = listening_port(context.options.listen)
    words: asyncio.Queue[bytes] = asyncio.Queue()
    try:
        async with _listening(port, words) as bound_port:
            dialled = await _is_dialled(context.client, bound_port, words, context.timing.dial_back_s)
    except OSError as error:
        return failed(
            f"Port {port} cannot be listened on ({error.strerror}).", "Stop what uses it, or --listen elsewhere."
        )
    except ManyhandsError as error:
        return skipped(str(error))
    context.reachable = dialled
    return judge_position(dialled, context.description.observed_address, own_addresses(), bound_port)


def judge_position(dialled: bool, observed: IPAddress, own: Collection[IPAddress], port: int) -> Outcome:
    """What it means that a machine with these addresses is seen at that one and could be dialled there, or not."""
    position = position_of(dialled, observed, own)
    data = {"reachable": dialled, "position": position.value, "observed_address": str(observed), "port": port}
    seen = f"The coordinator sees {observed}" + ("" if observed.is_global else ", which is no address of the internet")
    if dialled:
        return ok(f"{seen}, and a connection from there arrives here ({position.value}).", **data)
    found = f"{seen}, but no connection from there arrives here ({position.value})."
    return warning(found, _remedy(position), **data)


def position_of(dialled: bool, observed: IPAddress, own: Collection[IPAddress]) -> Position:
    """Compare what the coordinator sees with what this machine has."""
    if observed in own:
        return Position.OPEN if dialled else Position.FIREWALL
    if dialled:
        return Position.FORWARDED
    return Position.CARRIER_NAT if any(address in CARRIER_NETWORK for address in own) else Position.NAT


def _remedy(position: Position) -> str:
    if position is Position.CARRIER_NAT:
        return "Join with `--client-mode`: your provider shares one address among many customers."
    opened = "Allow a TCP port in the firewall" if position is Position.FIREWALL else "Forward a TCP port in the router"
    return f"Join with `--client-mode`, or: {opened} and name it (`--listen /ip4/0.0.0.0/tcp/PORT`)."


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
async def _listening(port: int, words: asyncio.Queue[bytes]) -> AsyncIterator[int]:
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


async def _is_dialled(client: ControlClient, port: int, words: asyncio.Queue[bytes], timeout_s: float) -> bool:
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
