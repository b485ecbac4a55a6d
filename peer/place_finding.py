"""What the agent finds out before it joins the swarm: whether others reach this machine, and how fast its line is."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import grpc

from auth.errors import ManyhandsError
from peer.control_client import ControlClient
from peer.dial_back import Ears, dialled_ways, listening, own_addresses
from peer.line import measure_line
from peer.place import UNMEASURED, Place, Seen, place_of
from peer.ways import Endpoint, Version, everywhere, read_endpoint

PROBE_TIMEOUT_FACTOR = 6
MAX_OTHER_HOSTS = 2  # of the coordinator, tried over the other IP version


@dataclass(frozen=True)
class Patience:
    """How long to try, in seconds."""

    probe_s: float = 1.0  # in each direction
    dial_back_s: float = 6.0  # the coordinator tries for five
    other_version_s: float = 4.0  # to connect to the coordinator over the other IP version


async def find_place(
    client: ControlClient, listen: tuple[str, ...], client_mode: bool, patience: Patience = Patience()
) -> Place:
    """Where this machine stands; what cannot be found out (an older coordinator, too many who ask) is assumed.

    `listen`: libp2p addresses, as the person gave them; none: every way that this machine has.
    """
    asked, listen = bool(listen), listen or tuple(endpoint.maddr for endpoint in everywhere())
    measured = await measured_bandwidth(client, patience)
    bandwidth = UNMEASURED if measured is None else measured
    if client_mode:
        return Place("client", listen, None, bandwidth)
    endpoints = {maddr: read_endpoint(maddr) for maddr in listen}
    async with listening([endpoint for endpoint in endpoints.values() if endpoint is not None]) as ears:
        seen, common = await _look(client, ears, patience)
    place = place_of(seen=seen, own=own_addresses(), listen=listen, common=common, bandwidth=bandwidth)
    if any(look.dialled for look in seen):
        place = replace(place, host_maddrs=tuple(_with_port(maddr, endpoints[maddr], ears) for maddr in listen))
    return place if asked else place.by_tcp_if_possible()


def _with_port(maddr: str, wanted: Endpoint | None, ears: Ears) -> str:
    """The address to listen on, at the port where it was tried: a firewall may let just that one through."""
    if wanted is None or wanted.port:
        return maddr
    return next((tried.maddr for tried in ears.endpoints if replace(tried, port=0) == wanted), maddr)


async def _look(client: ControlClient, ears: Ears, patience: Patience) -> tuple[list[Seen], Version]:
    """How the coordinator sees this machine over each IP version, and which version everybody in the run has."""
    try:
        description = await client.describe()
        observed = ipaddress.ip_address(description.observed_address)
    except (ManyhandsError, ValueError):
        return [], 4
    seen = [Seen(observed, await _dialled(client, ears, observed.version, patience.dial_back_s))]
    swarm = [*description.swarm_addresses[:16]]
    if any(endpoint.version != observed.version for endpoint in ears.endpoints):
        for host in await _hosts_of_other_version(client.link.host, swarm, observed.version):
            with suppress(ManyhandsError, OSError, ValueError, asyncio.TimeoutError):
                seen.append(await _look_from(client, host, ears, patience))
                break
    only_v6 = swarm and all(maddr.startswith(("/ip6/", "/dns6/")) for maddr in swarm)
    return seen, 6 if only_v6 else 4


async def _look_from(client: ControlClient, host: str, ears: Ears, patience: Patience) -> Seen:
    """How the same coordinator sees this machine when it is connected to at another of its addresses."""
    connecting = ControlClient.connect(replace(client.link, host=host), time.time)
    other = await asyncio.wait_for(connecting, patience.other_version_s)
    try:
        observed = ipaddress.ip_address((await other.describe()).observed_address)
        return Seen(observed, await _dialled(other, ears, observed.version, patience.dial_back_s))
    finally:
        await other.close()


async def _hosts_of_other_version(name: str, swarm: Sequence[str], version: int) -> list[str]:
    """Where else the coordinator may answer: what its name says, and where its keeper is announced."""
    family = socket.AF_INET6 if version == 4 else socket.AF_INET
    found: list[str] = []
    with suppress(OSError):
        resolved = await asyncio.get_running_loop().getaddrinfo(name, None, family=family, type=socket.SOCK_STREAM)
        found = [str(entry[4][0]) for entry in resolved]
    endpoints = [read_endpoint(maddr) for maddr in swarm]
    found += [endpoint.host for endpoint in endpoints if endpoint is not None and endpoint.version != version]
    return list(dict.fromkeys(found))[:MAX_OTHER_HOSTS]


async def _dialled(client: ControlClient, ears: Ears, version: Version, timeout_s: float) -> frozenset[Endpoint] | None:
    """By which ways the coordinator can dial this machine; None where that could not be tried."""
    if not any(endpoint.version == version for endpoint in ears.endpoints):
        return None  # the ports are taken, and the p2p daemon will say so
    try:
        return await dialled_ways(client, ears, version, timeout_s)
    except ManyhandsError:
        return None


async def measured_bandwidth(client: ControlClient, patience: Patience = Patience()) -> float | None:
    """Bytes per second of the line's slower direction; None where the coordinator does not measure it (now)."""
    call = client.open_probe(timeout_s=PROBE_TIMEOUT_FACTOR * patience.probe_s)
    try:
        speed = await measure_line(call, patience.probe_s, time.monotonic)
    except (grpc.aio.AioRpcError, ManyhandsError):
        return None
    finally:
        call.cancel()
    return min(speed.up, speed.down)
