"""The control plane under attack by strangers, over real sockets: bounded in number, rate, size and time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from auth.keys import TLS_NAME
from coordinator.control.door import DoorLimits
from coordinator.control.server import SERVICE_NAME
from peer.protocol import MAX_PEER_MESSAGE_BYTES, PROTOCOL_VERSION, control_pb2, control_pb2_grpc
from tests.support.control_plane import TestCoordinator, serving
from tests.support.waiting import PATIENCE_S

LIMITS = DoorLimits(handshake_s=PATIENCE_S, first_message_s=PATIENCE_S, idle_s=PATIENCE_S)
CODE = grpc.StatusCode


@asynccontextmanager
async def called(coordinator: TestCoordinator) -> AsyncIterator[grpc.aio.Channel]:
    """A stranger's connection."""
    credentials = grpc.ssl_channel_credentials(coordinator.directory.tls_cert_path.read_bytes())
    options = [("grpc.ssl_target_name_override", TLS_NAME), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{coordinator.server.port}", credentials, options) as channel:
        yield channel


def raw(channel: grpc.aio.Channel, method: str) -> Any:
    """Any method as a stream of bytes in both directions, which is what goes over the wire."""
    return channel.stream_stream(f"/{SERVICE_NAME}/{method}")


async def status_of(call: Any) -> grpc.StatusCode:
    """How a call ends."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


async def until_served(channel: grpc.aio.Channel) -> None:
    """Ask until there is an answer: the machine may be too slow for a short limit of the server's, but not always."""
    request = control_pb2.ChallengeRequest(protocol_version=PROTOCOL_VERSION)
    stub: Any = control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert len((await stub.Challenge(request, timeout=PATIENCE_S)).nonce) == 32
        except grpc.aio.AioRpcError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def until_closed(reader: asyncio.StreamReader) -> None:
    try:
        while await asyncio.wait_for(reader.read(4096), PATIENCE_S):
            pass
    except (ConnectionResetError, ssl.SSLError):
        return


@pytest.mark.parametrize("method", ["Challenge", "Join", "Renew", "FetchFile", "Checkpoint", "Describe", "DialBack"])
async def test_a_request_that_never_comes_is_not_waited_for(tmp_path: Path, method: str) -> None:
    """A call whose message does not arrive ends in time and holds its place no longer; the next is answered."""
    limits = replace(LIMITS, calls_per_caller=1, first_message_s=0.5)
    async with serving(tmp_path, limits=limits) as coordinator, called(coordinator) as channel:
        assert await asyncio.wait_for(status_of(raw(channel, method)()), PATIENCE_S) is CODE.INVALID_ARGUMENT
        await until_served(channel)


async def test_an_address_holds_so_many_calls(tmp_path: Path) -> None:
    """Streams that say nothing fill their own address's share, and give it back when they end."""
    async with (
        serving(tmp_path, limits=replace(LIMITS, calls_per_caller=3)) as coordinator,
        called(coordinator) as channel,
    ):
        calls = [raw(channel, "Join")() for _ in range(4)]
        ends = {asyncio.create_task(status_of(call)): call for call in calls}
        refused, held = await asyncio.wait(ends, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert [end.result() for end in refused] == [CODE.UNAVAILABLE]
        for end in held:
            await ends[end].done_writing()
        assert [await end for end in held] == [CODE.INVALID_ARGUMENT] * 3
        await until_served(channel)


@pytest.mark.usefixtures("no_patience")
async def test_an_address_calls_so_often(tmp_path: Path) -> None:
    """A flood is refused without a record in the database, in words by which a peer comes again later."""
    limits = replace(LIMITS, calls_per_minute=5)
    async with serving(tmp_path, limits=limits) as coordinator, called(coordinator) as channel:
        request = control_pb2.RenewRequest().SerializeToString()
        ends = [await one(channel, "Renew", request) for _ in range(8)]
    assert ends == [CODE.INVALID_ARGUMENT] * 5 + [CODE.UNAVAILABLE] * 3


async def one(channel: grpc.aio.Channel, method: str, message: bytes) -> grpc.StatusCode:
    """How a call with one message ends."""
    call = raw(channel, method)()
    try:
        await call.write(message)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return await asyncio.wait_for(status_of(call), PATIENCE_S)


async def test_a_large_message_is_refused(tmp_path: Path) -> None:
    """Its size is known before it is read."""
    async with serving(tmp_path, limits=LIMITS) as coordinator, called(coordinator) as channel:
        for method in ("Join", "Session"):
            assert await one(channel, method, b"\x0a" * (MAX_PEER_MESSAGE_BYTES + 1)) is CODE.RESOURCE_EXHAUSTED
        await until_served(channel)


async def test_nobody_watches_health_for_ever(tmp_path: Path) -> None:
    """Health is asked for and answered; there is no stream of it to hold."""
    async with serving(tmp_path, limits=LIMITS) as coordinator, called(coordinator) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="")
        assert (await stub.Check(request, timeout=PATIENCE_S)).status == health_pb2.HealthCheckResponse.SERVING
        assert await status_of(stub.Watch(request)) is CODE.UNIMPLEMENTED


@pytest.mark.parametrize("frames", [b"", b"no frames at all, but text " * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_a_connection_without_a_call_is_closed(tmp_path: Path, frames: bytes) -> None:
    """Behind TLS, too, silence, garbage and a bare greeting end with the connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    async with serving(tmp_path, limits=replace(LIMITS, handshake_s=1.0, idle_s=2.0)) as coordinator:
        reader, writer = await within_the_handshakes_time(coordinator.server.port, context)
        writer.write(frames)
        await until_closed(reader)
        writer.close()


async def within_the_handshakes_time(
    port: int, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection by TLS; a machine that is too slow for it is cut off, and tries again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except (ConnectionError, ssl.SSLError):
            if time.monotonic() > deadline:
                raise


async def test_nobodys_address_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is in the log and in the database; the address that it went to is in neither."""
    caplog.set_level("INFO")
    async with serving(tmp_path, limits=LIMITS) as coordinator, called(coordinator) as channel:
        assert await one(channel, "Renew", b"") is CODE.INVALID_ARGUMENT
    assert "Refused a renew request" in caplog.text
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").glob("manyhands.db*"))
    assert b"bad-request" in stored
    assert "127.0.0.1" not in caplog.text
    assert b"127.0.0.1" not in stored
