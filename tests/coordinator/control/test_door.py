"""The control plane's door: places for each address, strangers, and what it relays, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from auth.errors import PortTakenError
from auth.keys import TLS_NAME
from coordinator.control.door import DoorLimits
from peer.control.client import ControlClient
from peer.protocol import PROTOCOL_VERSION, control_pb2, control_pb2_grpc
from tests.support.control_plane import TestCoordinator, joined, serving
from tests.support.waiting import PATIENCE_S, eventually

LIMITS = DoorLimits(handshake_s=PATIENCE_S, first_message_s=PATIENCE_S, idle_s=PATIENCE_S)
ATTACKER, ANOTHER = "127.0.0.2", "127.0.0.3"
HALF_A_GREETING = b"\x16\x03\x01\x02\x00\x01" + bytes(200)
A_GREETING = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"  # whole, and nonsense
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def lines(port: int, count: int, source: str, say: bytes = b"") -> AsyncIterator[list[Line]]:
    """Plain TCP connections from an address, which stay open as long as the other side lets them."""
    opened: list[Line] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            writer.write(say)
            opened.append((reader, writer))
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def until_ended(line: Line) -> None:
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(line[0].read(), PATIENCE_S) == b""


def ended(opened: list[Line]) -> int:
    """How many of these the other side is known to have ended."""
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in opened)


def figure(coordinator: TestCoordinator, name: str) -> float | None:
    """One of the service's own counters."""
    return coordinator.services.telemetry.registry.get_sample_value(f"manyhands_control_connections_{name}")


async def challenges(coordinator: TestCoordinator, count: int) -> int:
    """How many of so many challenges, each over a connection of its own, are answered."""
    certificate = coordinator.directory.tls_cert_path.read_bytes()
    options = [("grpc.ssl_target_name_override", TLS_NAME), ("grpc.use_local_subchannel_pool", 1)]
    request, answered = control_pb2.ChallengeRequest(protocol_version=PROTOCOL_VERSION), 0
    for _ in range(count):
        credentials = grpc.ssl_channel_credentials(certificate)
        async with grpc.aio.secure_channel(f"127.0.0.1:{coordinator.server.port}", credentials, options) as channel:
            stub = control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
            with suppress(grpc.aio.AioRpcError):
                answered += len((await stub.Challenge(request, timeout=PATIENCE_S)).nonce) == 32
    return answered


@pytest.mark.parametrize("say", [b"", HALF_A_GREETING], ids=["silent", "half a greeting"])
async def test_one_address_takes_nobody_elses_place(tmp_path: Path, say: bytes) -> None:
    """Plain connections, silent ones and ones that begin a greeting, fill their own address's share alone."""
    limits = replace(LIMITS, connections=30, calls_per_caller=8)
    async with (
        serving(tmp_path, limits=limits) as coordinator,
        lines(coordinator.server.port, 40, ATTACKER, say) as opened,
    ):
        assert await challenges(coordinator, 15) == 15
        assert ended(opened) == figure(coordinator, "refused_total") == 32


async def test_strangers_of_many_addresses_make_room_for_others(tmp_path: Path) -> None:
    """When strangers' places are full, the oldest of the address with the most loses its own; sessions lose nothing."""
    async with (
        serving(tmp_path, limits=replace(LIMITS, strangers=10, calls_per_caller=8)) as coordinator,
        joined(coordinator, tmp_path) as member,
    ):
        member.start()
        await eventually("the session is open", lambda: member.heard.connected == [True])
        async with (
            lines(coordinator.server.port, 8, ATTACKER) as many,
            lines(coordinator.server.port, 2, ANOTHER) as few,
        ):
            assert await challenges(coordinator, 5) == 5
            await until_ended(many[0])
            assert ended(few) == 0
            assert member.heard.connected == [True]
        await member.leave()


@pytest.mark.parametrize("say", [b"", HALF_A_GREETING, b"\x16"], ids=["silent", "half a greeting", "one byte"])
async def test_a_stranger_has_its_time(tmp_path: Path, say: bytes) -> None:
    """A connection without a first call in time ends, whatever it has begun to say."""
    limits = replace(LIMITS, handshake_s=0.1, first_message_s=0.1)
    async with serving(tmp_path, limits=limits) as coordinator, lines(coordinator.server.port, 1, ATTACKER, say) as few:
        await until_ended(few[0])


async def test_a_stranger_behind_tls_has_its_time(tmp_path: Path) -> None:
    """A handshake alone makes no guest of anybody."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    limits = replace(LIMITS, handshake_s=2.0, first_message_s=0.5)
    async with serving(tmp_path, limits=limits) as coordinator:
        reader, writer = await asyncio.open_connection("127.0.0.1", coordinator.server.port, ssl=context)
        with suppress(ConnectionResetError, ssl.SSLError):
            while await asyncio.wait_for(reader.read(4096), PATIENCE_S):
                pass
        writer.close()


@pytest.mark.parametrize("say", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x15\x03\x01\x00\x02\x01\x00"])
async def test_what_begins_no_tls_ends_at_once(tmp_path: Path, say: bytes) -> None:
    """Neither text, nor a record longer than one can be, nor one that is no handshake, waits for its time limit."""
    async with serving(tmp_path, limits=LIMITS) as coordinator, lines(coordinator.server.port, 1, ATTACKER, say) as few:
        await until_ended(few[0])


async def test_a_place_is_given_back(tmp_path: Path) -> None:
    """An address that closes its connections may open as many again, wherever in their course they were."""
    async with serving(tmp_path, limits=replace(LIMITS, calls_per_caller=2)) as coordinator:
        for say in (b"", HALF_A_GREETING):
            async with lines(coordinator.server.port, 2, ATTACKER, say):
                await eventually("both are in", lambda: figure(coordinator, "open") == 2)
            await eventually("both are out", lambda: figure(coordinator, "open") == 0)
        async with lines(coordinator.server.port, 2, ATTACKER, A_GREETING) as opened:
            for line in opened:
                await asyncio.wait_for(line[0].read(), PATIENCE_S)  # TLS's word that this is nonsense
        assert await challenges(coordinator, 1) == 1
        await eventually("the caller is out", lambda: figure(coordinator, "open") == 0)
        assert figure(coordinator, "refused_total") == 0


async def test_a_greeting_in_pieces_is_one(tmp_path: Path) -> None:
    """A slow line's handshake, a byte at a time, ends in TLS as a quick one's does."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handshake = context.wrap_bio(incoming, outgoing)
    async with serving(tmp_path, limits=LIMITS) as coordinator, lines(coordinator.server.port, 1, ATTACKER) as opened:
        reader, writer = opened[0]
        while True:
            try:
                handshake.do_handshake()
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    writer.write(bytes([byte]))
                    await writer.drain()
                incoming.write(await asyncio.wait_for(reader.read(4096), PATIENCE_S))
            else:
                break
        assert handshake.version() == "TLSv1.3"


async def test_the_servicer_knows_the_callers_address(tmp_path: Path) -> None:
    """What the door relays comes from the volunteer's address as ever, over IPv4 and over IPv6."""
    async with serving(tmp_path, bind="0.0.0.0") as coordinator:  # noqa: S104
        for host in ("127.0.0.1", "::1"):
            client = await ControlClient.connect(replace(coordinator.link, host=host), time.time)
            assert (await client.describe()).observed_address == host
            await client.close()


async def test_a_second_server_on_the_port_is_refused(tmp_path: Path) -> None:
    """In words that name the port and its setting, while something listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with AsyncExitStack() as stack:
            coordinator = await stack.enter_async_context(serving(tmp_path))
            with pytest.raises(PortTakenError, match=rf"{port}.*control_port"):
                await coordinator.serve_again(port)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which must be empty in the end; pytest's may be too long for a socket's name."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    folder.rmdir()


async def test_nothing_is_left_of_a_door(tmp_path: Path, temporary: Path) -> None:
    """The folder of its socket is its user's alone, and goes with it."""
    async with serving(tmp_path) as coordinator:
        [folder] = entries(temporary)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert await challenges(coordinator, 3) == 3
        await eventually("only one socket is there", lambda: [path.name for path in entries(folder)] == ["grpc"])
    assert entries(temporary) == []


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())
