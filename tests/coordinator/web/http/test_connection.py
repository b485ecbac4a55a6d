"""HTTP connections under attack, over real sockets: each costs bounded memory and time, and others are still served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fastapi import FastAPI, Request, Response

from coordinator.web.http.server import ConnectionLimits, WebServer
from tests.support.waiting import PATIENCE_S, eventually

LIMITS = ConnectionLimits(
    connections=12,
    connections_per_caller=8,
    request_s=PATIENCE_S,
    reading_s=PATIENCE_S,
    head_bytes=2048,
    keep_alive_s=int(PATIENCE_S),
)
IMPATIENT = replace(LIMITS, request_s=0.4)
LOOPBACK = ("127.0.0.1",)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 64 << 20


def an_app() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    def hello(request: Request) -> str:
        return request.client.host if request.client else ""

    @app.get("/large")
    def large() -> Response:
        return Response(b"x" * LARGE)

    @app.post("/post")
    async def post(request: Request) -> int:
        return len(await request.body())

    return app


@asynccontextmanager
async def served(limits: ConnectionLimits = LIMITS, trusted: Sequence[str] = ()) -> AsyncIterator[WebServer]:
    server = await WebServer.start(an_app(), "127.0.0.1", 0, trusted, limits)
    try:
        yield server
    finally:
        await server.stop()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What the server says before it closes; a reset is an end, too."""
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionResetError:
        return b"reset"


async def speak(port: int, beginning: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which this much has arrived before the server takes it: its time cannot be over by then."""
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(beginning)
    return await asyncio.open_connection(sock=line)


async def status_of(port: int, request: bytes = GET) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return line


@pytest.mark.parametrize(
    "beginning", [b"", b"GET / HTTP/1.1\r\nX: ", b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"]
)
async def test_a_request_that_never_ends_is_ended(beginning: bytes) -> None:
    """Silence, half a head and half a body are cut off."""
    async with served(IMPATIENT) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(beginning)
        assert b"200" not in await until_closed(reader)
        writer.close()


async def test_a_drop_now_and_then_gains_no_time() -> None:
    """A slow-loris client, which sends a byte before each pause, is cut off as one that sends none."""
    async with served(IMPATIENT) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        reading = asyncio.create_task(until_closed(reader))
        while not reading.done():
            writer.write(b"a")
            await asyncio.wait({reading}, timeout=0.05)
        assert await reading in {b"", b"reset"}
        writer.close()


async def test_a_second_request_that_never_ends_is_ended_too() -> None:
    """The clock runs again after an answer."""
    async with served(IMPATIENT) as server:
        reader, writer = await speak(server.port, GET + b"GET / HTTP/1.1\r\nX: ")
        assert (await until_closed(reader)).count(b"HTTP/1.1 200") == 1
        writer.close()


async def test_an_endless_head_is_refused() -> None:
    """A head beyond its size gets 400 and the connection's end, however long it would go on."""
    async with served() as server:
        assert b"400" in await status_of(server.port, b"GET / HTTP/1.1\r\nX: " + b"a" * 5000)


async def test_an_answer_nobody_reads_is_given_up() -> None:
    """Who asks for much and reads nothing does not hold it in the server's memory."""
    async with served(replace(LIMITS, reading_s=0.3)) as server:
        reading = socket.socket()
        reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reading.connect(("127.0.0.1", server.port))
        reading.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        reading.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(reading, 1) == b"H"  # the answer has begun
        await eventually_holds(server, 0)
        reading.close()


async def eventually_holds(server: WebServer, connections: int) -> None:
    await eventually(f"the server holds {connections} connections", lambda: server.connections == connections)


async def test_one_address_cannot_take_all_connections() -> None:
    """Beyond its share a caller's connections are closed at once; when its others have ended it is served again."""
    async with served() as server:
        crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(LIMITS.connections_per_caller)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await until_closed(reader) in {b"", b"reset"}
        writer.close()
        for _, other in crowd:
            other.close()
        await eventually_holds(server, 0)
        assert b"200" in await status_of(server.port)


async def test_a_trusted_proxy_may_hold_all_connections_but_no_more() -> None:
    """Its connections are many people's; all together they are bounded."""
    async with served(trusted=LOOPBACK) as server:
        crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(LIMITS.connections)]
        await eventually_holds(server, LIMITS.connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await until_closed(reader) in {b"", b"reset"}
        for _, other in [*crowd, (reader, writer)]:
            other.close()


@pytest.mark.parametrize(("trusted", "seen"), [((), b"127.0.0.1"), (LOOPBACK, b"203.0.113.7")])
async def test_only_a_trusted_proxy_says_who_asks(trusted: Sequence[str], seen: bytes) -> None:
    """`X-Forwarded-For` of anybody else is ignored."""
    async with served(trusted=trusted) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.7\r\nConnection: close\r\n\r\n")
        assert seen in await until_closed(reader)
        writer.close()
