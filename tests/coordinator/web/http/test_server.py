"""The HTTP server inside the service: it says when it is up, names a taken port, and ends when told."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI

from auth.errors import ManyhandsError, PortTakenError
from coordinator.web.http.server import WebServer


def an_app(events: list[str], fails: bool = False) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        events.append("up")
        if fails:
            raise RuntimeError("no")
        yield
        events.append("down")

    app = FastAPI(lifespan=lifespan)
    app.get("/")(lambda: {"hello": "world"})
    return app


async def get(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    return reply


async def test_it_serves_until_stopped_and_ends_the_applications_lifespan() -> None:
    """After `start` a request is answered; after `stop` the application has shut down and nobody listens."""
    events: list[str] = []
    server = await WebServer.start(an_app(events), "127.0.0.1", 0)
    assert b'"hello"' in await get(server.port)
    await server.stop()
    assert events == ["up", "down"]
    with pytest.raises(ConnectionRefusedError):
        await get(server.port)


async def test_a_taken_port_is_named_before_anything_starts() -> None:
    """The error says which port, and the application was never started."""
    events: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            await WebServer.start(an_app(events), "127.0.0.1", port)
    assert events == []


async def test_an_application_that_cannot_start_is_an_error() -> None:
    """It does not look like a server that runs."""
    with pytest.raises(ManyhandsError, match="did not start"):
        await WebServer.start(an_app([], fails=True), "127.0.0.1", 0)


async def test_signals_stay_with_the_process() -> None:
    """uvicorn's handlers would stop only the half of the service that is uvicorn's."""
    before = signal.getsignal(signal.SIGTERM)
    server = await WebServer.start(an_app([]), "127.0.0.1", 0)
    assert signal.getsignal(signal.SIGTERM) is before
    await server.stop()
