"""Reachability and bandwidth of this machine, determined before joining.

The coordinator connects back to this machine's observed address, over TCP and UDP, at the ports
where the peer will listen. It sends a random secret, also contained in its reply, to identify its
connections. Bandwidth to the coordinator is measured in both directions.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import psutil

from auth.errors import ManyhandsError, UnreachableError
from peer.control.client import ControlClient
from peer.network.endpoints import Endpoint, IPAddress, Version, bind_alike, everywhere, read_endpoint
from peer.network.placement import UNMEASURED, Placement, Seen, place_of
from peer.protocol import LOWEST_DIALLED_PORT, MAX_PROBE_BYTES, PROBE_CHUNK_BYTES, WORD_BYTES, control_pb2
from peer.protocol.errors import error_from_rpc

READ_TIMEOUT_S = 3.0
OTHERS_TIMEOUT_S = 1.0  # time to wait for the second transport after the first succeeds
MAX_WORDS = 1_000  # maximum number of queued secrets; anyone may send one
PROBE_TIMEOUT_FACTOR = 6  # timeout of the measurement, as a multiple of its time per direction
MAX_OTHER_HOSTS = 2  # number of hosts to try over the other IP version


@dataclass(frozen=True)
class Patience:
    """The durations and timeouts of the tests, in seconds."""

    probe_s: float = 1.0  # duration of the bandwidth measurement in each direction
    dial_back_s: float = 6.0  # timeout for connecting back; longer than the coordinator's timeout of 5 s
    other_version_s: float = 4.0  # timeout of a connection over the other IP version


async def find_place(
    client: ControlClient, listen: tuple[str, ...], client_mode: bool, patience: Patience = Patience()
) -> Placement:
    """Determine how peers can reach this machine; use defaults if the coordinator cannot test it.

    `listen` has the volunteer's libp2p addresses; if empty, the peer listens on every IP version.
    """
    listen = listen or tuple(endpoint.maddr for endpoint in everywhere())
    measured = await measured_bandwidth(client, patience)
    bandwidth = UNMEASURED if measured is None else measured
    if client_mode:
        return Placement("client", listen, None, bandwidth)
    endpoints = {maddr: read_endpoint(maddr) for maddr in listen}
    async with listening([endpoint for endpoint in endpoints.values() if endpoint is not None]) as ears:
        seen, common = await _look(client, ears, patience)
    place = place_of(seen=seen, own=own_addresses(), listen=listen, common=common, bandwidth=bandwidth)
    if any(look.dialled for look in seen):
        place = replace(place, host_maddrs=tuple(_with_port(maddr, endpoints[maddr], ears) for maddr in listen))
    return place


def _with_port(maddr: str, wanted: Endpoint | None, ears: Ears) -> str:
    """Return the listening address with the tested port, because a firewall may allow no other."""
    if wanted is None or wanted.port:
        return maddr
    return next((tried.maddr for tried in ears.endpoints if replace(tried, port=0) == wanted), maddr)


async def _look(client: ControlClient, ears: Ears, patience: Patience) -> tuple[list[Seen], Version]:
    """Return (coordinator's view of this machine per IP version, IP version common to all peers)."""
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
    """Connect to `host`, and return the coordinator's view of this machine."""
    connecting = ControlClient.connect(replace(client.link, host=host), time.time)
    other = await asyncio.wait_for(connecting, patience.other_version_s)
    try:
        observed = ipaddress.ip_address((await other.describe()).observed_address)
        return Seen(observed, await _dialled(other, ears, observed.version, patience.dial_back_s))
    finally:
        await other.close()


async def _hosts_of_other_version(name: str, swarm: Sequence[str], version: int) -> list[str]:
    """Return the coordinator's and the keeper's hosts whose IP version is not `version`."""
    family = socket.AF_INET6 if version == 4 else socket.AF_INET
    found: list[str] = []
    with suppress(OSError):
        resolved = await asyncio.get_running_loop().getaddrinfo(name, None, family=family, type=socket.SOCK_STREAM)
        found = [str(entry[4][0]) for entry in resolved]
    endpoints = [read_endpoint(maddr) for maddr in swarm]
    found += [endpoint.host for endpoint in endpoints if endpoint is not None and endpoint.version != version]
    return list(dict.fromkeys(found))[:MAX_OTHER_HOSTS]


async def _dialled(client: ControlClient, ears: Ears, version: Version, timeout_s: float) -> frozenset[Endpoint] | None:
    """Return the endpoints that the coordinator can reach, or None if they cannot be checked."""
    if not any(endpoint.version == version for endpoint in ears.endpoints):
        return None  # no endpoint could be bound; the p2p daemon will report the reason
    try:
        return await dialled_ways(client, ears, version, timeout_s)
    except ManyhandsError:
        return None


async def measured_bandwidth(client: ControlClient, patience: Patience = Patience()) -> float | None:
    """Return the bandwidth in the slower direction in bytes/s, or None if it cannot be measured."""
    try:
        speed = await measure_line(client, patience.probe_s, time.monotonic)
    except ManyhandsError:
        return None
    return min(speed.up, speed.down)


def own_addresses() -> frozenset[IPAddress]:
    """Return the IP addresses of this machine's network interfaces."""
    entries = [entry for found in psutil.net_if_addrs().values() for entry in found]
    families = (socket.AF_INET, socket.AF_INET6)
    texts = (entry.address.partition("%")[0] for entry in entries if entry.family in families)
    return frozenset(ipaddress.ip_address(text) for text in texts)


@dataclass(frozen=True)
class Ears:
    """The endpoints on which this machine listens, and the secrets received there."""

    endpoints: tuple[Endpoint, ...]  # endpoints with the ports to which they are bound
    words: asyncio.Queue[tuple[Endpoint, bytes]] = field(default_factory=lambda: asyncio.Queue(MAX_WORDS))

    def hear(self, endpoint: Endpoint, word: bytes) -> None:
        """Queue a received secret, or drop it if the queue is full (only attackers can fill it)."""
        if not self.words.full():
            self.words.put_nowait((endpoint, word))

    def first(self, version: Version, transport: str) -> Endpoint | None:
        """Return the endpoint to test for this IP version and transport, or None if there is none."""
        alike = (place for place in self.endpoints if (place.version, place.transport) == (version, transport))
        return next((place for place in alike if place.port >= LOWEST_DIALLED_PORT), None)


@asynccontextmanager
async def listening(endpoints: Sequence[Endpoint]) -> AsyncIterator[Ears]:
    """Listen on all endpoints that can be bound, until the `with` block ends."""
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
    """Return the endpoints that receive the coordinator's secret within `timeout_s`."""
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
    """A TCP handler that reads a secret from each connection to one endpoint."""

    endpoint: Endpoint
    ears: Ears

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            word = await asyncio.wait_for(reader.readexactly(WORD_BYTES), READ_TIMEOUT_S)
            self.ears.hear(self.endpoint, word)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # the connection was from another client
        finally:
            writer.close()


@dataclass(frozen=True)
class _Datagrams(asyncio.DatagramProtocol):
    """A UDP protocol that reads secrets from datagrams to one endpoint."""

    endpoint: Endpoint
    ears: Ears

    def datagram_received(self, data: bytes, _addr: object) -> None:
        """Queue a datagram if it has a secret's length."""
        if len(data) == WORD_BYTES:
            self.ears.hear(self.endpoint, data)


@dataclass(frozen=True)
class LineSpeed:
    """The bandwidth between this machine and the coordinator, in bytes per second."""

    up: float
    down: float


async def measure_line(client: ControlClient, limit_s: float, stopwatch: Callable[[], float]) -> LineSpeed:
    """Measure each direction for up to `limit_s` seconds or `MAX_PROBE_BYTES`. Raises `ManyhandsError`."""
    call = client.open_probe(timeout_s=PROBE_TIMEOUT_FACTOR * limit_s)
    try:
        return await _measure(call, limit_s, stopwatch)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    finally:
        call.cancel()


async def _measure(call: Any, limit_s: float, stopwatch: Callable[[], float]) -> LineSpeed:
    noise = secrets.token_bytes(PROBE_CHUNK_BYTES)  # random bytes cannot be compressed in transit
    await call.write(control_pb2.ProbeUp(download_bytes=MAX_PROBE_BYTES))
    await call.read()  # raises if the coordinator refuses
    began, sent = stopwatch(), 0
    while sent < MAX_PROBE_BYTES and stopwatch() - began < limit_s:
        await call.write(control_pb2.ProbeUp(data=noise))
        sent += len(noise)
    await call.done_writing()
    first = await call.read()
    if first is grpc.aio.EOF or first.received_bytes != sent:
        raise UnreachableError("The coordinator did not receive all data of the bandwidth measurement.")
    turned = stopwatch()
    received = 0
    while received < MAX_PROBE_BYTES and stopwatch() - turned < limit_s:
        reply = await call.read()
        if reply is grpc.aio.EOF:
            break
        received += len(reply.data)
    return LineSpeed(rate(sent, turned - began), rate(received, stopwatch() - turned))


def rate(size_bytes: int, seconds: float) -> float:
    """Return bytes per second, with a minimum duration of 1 ms because clocks may be coarse."""
    return size_bytes / max(seconds, 1e-3)
