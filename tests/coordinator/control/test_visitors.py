"""What strangers may ask, over the real control plane, and what it may cost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest

from auth.errors import RequestError
from coordinator.control.visitors import DIALS_PER_MINUTE, PROBES_AT_ONCE, PROBES_PER_MINUTE, Visitors
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from peer.protocol import MAX_PROBE_BYTES, PROBE_CHUNK_BYTES, WORD_BYTES, control_pb2
from peer.protocol.errors import error_from_rpc
from tests.support.control_plane import connected, serving, write_status
from tests.support.waiting import PATIENCE_S

KEEPER = "/ip4/127.0.0.1/tcp/31337/p2p/QmKeeper"


async def ask(client: ControlClient, method: str, request: Any) -> Any:
    try:
        return await getattr(client._stub, method)(request, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def probe(client: ControlClient, up_bytes: int, down_bytes: int) -> tuple[int, int]:
    """Send and ask for so much; returns what the coordinator says it received, and what it sent."""

    async def chunks() -> AsyncIterator[control_pb2.ProbeUp]:
        yield control_pb2.ProbeUp(download_bytes=down_bytes)
        for start in range(0, up_bytes, PROBE_CHUNK_BYTES):
            yield control_pb2.ProbeUp(data=bytes(min(PROBE_CHUNK_BYTES, up_bytes - start)))

    try:
        replies = [reply async for reply in client._stub.Probe(chunks(), timeout=PATIENCE_S)]
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    return replies[1].received_bytes, sum(len(reply.data) for reply in replies)


async def test_a_stranger_learns_what_the_run_needs(tmp_path: Path) -> None:
    """Sizes, the swarm's address and speed, and its own address, without an account."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        write_status(coordinator, KEEPER)
        reply = await ask(client, "Describe", control_pb2.DescribeRequest())
        assert RunConfig.from_json(reply.run_config_json).run.name == "test"
        assert list(reply.swarm_addresses) == [KEEPER]
        assert reply.samples_per_second == 7.5
        assert reply.observed_address == "127.0.0.1"


async def test_before_the_keeper_has_started_there_is_no_address(tmp_path: Path) -> None:
    """The run is described all the same."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        reply = await ask(client, "Describe", control_pb2.DescribeRequest())
        assert list(reply.swarm_addresses) == []
        assert reply.run_config_json


@pytest.mark.parametrize(("up", "down"), [(0, 0), (1, PROBE_CHUNK_BYTES + 1), (MAX_PROBE_BYTES, MAX_PROBE_BYTES)])
async def test_every_byte_of_a_probe_is_counted(tmp_path: Path, up: int, down: int) -> None:
    """What was sent is acknowledged, and just as much comes back as was asked for."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        assert await probe(client, up, down) == (up, down)


@pytest.mark.parametrize(("up", "down"), [(MAX_PROBE_BYTES + 1, 0), (0, MAX_PROBE_BYTES + 1)])
async def test_a_probe_is_bounded(tmp_path: Path, up: int, down: int) -> None:
    """More than the limit is refused, in either direction, and recorded."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        with pytest.raises(RequestError, match=str(MAX_PROBE_BYTES)):
            await probe(client, up, down)
        assert coordinator.refusals() == [("visit", "bad-request")]


@pytest.mark.usefixtures("no_patience")
async def test_one_caller_probes_a_few_times_a_minute(tmp_path: Path) -> None:
    """One probe too many is refused, with the remedy."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        for _ in range(PROBES_PER_MINUTE):
            await probe(client, 0, 0)
        with pytest.raises(RequestError, match="wait"):
            await probe(client, 0, 0)


async def test_few_probe_at_once(tmp_path: Path) -> None:
    """While others are being measured a caller is asked to wait; afterwards there is room again."""

    async def nothing(_: Any) -> None:
        """Takes what is sent."""

    async with serving(tmp_path) as coordinator:
        visitors = Visitors(coordinator.services, lambda: 0.0)
        finish = asyncio.Event()

        async def slow() -> AsyncIterator[control_pb2.ProbeUp]:
            yield control_pb2.ProbeUp()
            await finish.wait()

        send: Callable[[Any], Awaitable[None]] = nothing
        running = [
            asyncio.create_task(visitors.probe(ip_address(f"192.0.2.{number}"), slow(), send))
            for number in range(PROBES_AT_ONCE)
        ]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="other lines"):
            await visitors.probe(ip_address("192.0.2.100"), slow(), send)
        finish.set()
        await asyncio.gather(*running)
        await visitors.probe(ip_address("192.0.2.101"), slow(), send)


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:  # it may have been admitted
        continue


async def test_a_probe_does_not_hold_its_place_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who sends nothing, or takes nothing, is sent away."""
    monkeypatch.setattr("coordinator.control.visitors.PROBE_TIMEOUT_S", 0.05)
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        call = client._stub.Probe(timeout=PATIENCE_S)
        await call.write(control_pb2.ProbeUp())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_to_the_end(call)
        assert "not measured" in str(error_from_rpc(caught.value))


async def test_the_coordinator_dials_back(tmp_path: Path) -> None:
    """A connection arrives at the caller's port, and says the word that the reply announced."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.read(1000))
        writer.close()

    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        listener = await asyncio.start_server(listen, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        reply = await ask(client, "DialBack", control_pb2.DialBackRequest(port=port))
        assert len(reply.word) == WORD_BYTES
        assert await asyncio.wait_for(heard.get(), PATIENCE_S) == reply.word
        listener.close()


async def test_whether_a_port_is_open_shows_only_there(tmp_path: Path) -> None:
    """The reply for a closed port is no other than that for an open one: nobody can look around with it."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        reply = await ask(client, "DialBack", control_pb2.DialBackRequest(port=1024 + secrets.randbelow(1000)))
        assert len(reply.word) == WORD_BYTES


@pytest.mark.parametrize("port", [0, 22, 1023, 65536, 2**32 - 1])
async def test_only_high_ports_are_dialled(tmp_path: Path, port: int) -> None:
    """The ports of a machine's own services are left alone."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        with pytest.raises(RequestError, match="port"):
            await ask(client, "DialBack", control_pb2.DialBackRequest(port=port))


@pytest.mark.usefixtures("no_patience")
async def test_one_caller_is_dialled_a_few_times_a_minute(tmp_path: Path) -> None:
    """So that nobody scans with the coordinator's help."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        for number in range(DIALS_PER_MINUTE):
            await ask(client, "DialBack", control_pb2.DialBackRequest(port=2000 + number))
        with pytest.raises(RequestError, match="wait"):
            await ask(client, "DialBack", control_pb2.DialBackRequest(port=3000))
