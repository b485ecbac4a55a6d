"""The boundary of HTTP requests: sizes, rates and streams are bounded, and failures say nothing of the inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError
from starlette.types import Message

from auth.errors import ConfigError, StorageError
from coordinator.throttling.rate_limits import CallerPlaces
from coordinator.web.app import create_app
from coordinator.web.http.boundary import MAX_BODY_BYTES, PIECE_BYTES, Boundary
from coordinator.web.http.server import WebServer
from coordinator.web.state.web_state import WebState
from tests.support.served_page import FakeRun
from tests.support.waiting import PATIENCE_S

SECRET = "/root/keys/authority.key"


def an_app(requests_per_minute: int = 1000, names: frozenset[str] | None = None) -> FastAPI:
    app = FastAPI()
    failures = {
        "bug": RuntimeError(SECRET),
        "store": OperationalError("SELECT", {}, Exception(SECRET)),
        "disk": StorageError(SECRET),
        "input": ConfigError("`days` (0) must be above 0."),
    }

    @app.get("/fail/{kind}")
    def fail(kind: str) -> None:
        raise failures[kind]

    @app.post("/post")
    async def post(request: Request) -> int:
        return len(await request.body())

    app.add_middleware(Boundary, requests_per_minute=requests_per_minute, names=names)
    return app


@pytest.mark.parametrize(("kind", "status"), [("bug", 500), ("store", 503), ("disk", 503), ("input", 400)])
def test_a_failure_is_one_sentence(kind: str, status: int) -> None:
    """No trace, no path and no statement reaches the client; what a person can mend does."""
    answer = TestClient(an_app()).get(f"/fail/{kind}")
    assert answer.status_code == status
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
    assert ("log says why" in answer.json()["detail"]) == (status >= 500)


def test_a_body_of_any_kind_is_bounded() -> None:
    """What says that it is too long is refused before it is read, and what does not say it when it is."""
    client = TestClient(an_app())
    assert client.post("/post", content=b"x" * MAX_BODY_BYTES).json() == MAX_BODY_BYTES
    assert client.post("/post", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    assert client.post("/post", content=endless()).status_code == 413
    assert client.post("/post", headers={"content-length": "many"}).status_code == 413


def endless() -> Iterator[bytes]:
    for _ in range(100):
        yield b"x" * 4096


@pytest.mark.parametrize(
    "size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES, 7 * PIECE_BYTES + 9]
)
async def test_a_large_answer_goes_out_in_pieces(size: int) -> None:
    """The connection never holds more than a piece, and the reader gets every byte once."""
    answer = bytes(range(256)) * (size // 256 + 1)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
    await Boundary(Response(answer[:size]))(scope, receive, send)
    bodies = [message["body"] for message in sent[1:]]
    assert b"".join(bodies) == answer[:size]
    assert max(map(len, bodies)) <= PIECE_BYTES
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(bodies) - 1) + [False]


@pytest.mark.usefixtures("no_patience")
def test_an_address_may_ask_so_often() -> None:
    """One request too many gets 429 and when to come back."""
    client = TestClient(an_app(requests_per_minute=3))
    answers = [client.get("/nowhere") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [404, 404, 404, 429]
    assert answers[-1].headers["retry-after"] == "10"


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with one step."""
    run.add_member("ada")
    run.add_step(1, 9.0)
    return run


@asynccontextmanager
async def streaming(port: int) -> AsyncIterator[bytes]:
    """An open stream of events; gives the answer's head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        yield await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_streams_are_bounded_and_their_places_come_back(run: FakeRun) -> None:
    """An address that holds its share of streams gets no other; a page that is closed makes room."""
    streams = CallerPlaces(768, 2)
    app = create_app(WebState(run.directory, run.services, streams=streams))
    server = await WebServer.start(app, "127.0.0.1", 0)
    async with streaming(server.port) as first, streaming(server.port) as second, streaming(server.port) as third:
        assert [head.startswith(b"HTTP/1.1 200 ") for head in (first, second, third)] == [True, True, False]
    while len(streams):  # noqa: ASYNC110  # there is no event of it
        await asyncio.sleep(0.02)
    async with streaming(server.port) as head:
        assert head.startswith(b"HTTP/1.1 200 ")
    await server.stop()


async def test_a_proxy_is_told_to_pass_events_on_at_once(run: FakeRun) -> None:
    """nginx collects an answer in its buffers else, and the page sees two events and then none."""
    server = await WebServer.start(create_app(WebState(run.directory, run.services)), "127.0.0.1", 0)
    async with streaming(server.port) as head:
        assert {b"x-accel-buffering: no", b"cache-control: no-cache"} <= set(head.lower().splitlines())
    await server.stop()


async def test_streams_end_when_the_server_stops(run: FakeRun, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody's stream is cut off, and the log has nothing to say of it."""
    server = await WebServer.start(create_app(WebState(run.directory, run.services)), "127.0.0.1", 0)
    async with streaming(server.port) as head:
        assert head.startswith(b"HTTP/1.1 200 ")
        await server.stop()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_refusal_has_the_security_headers(run: FakeRun) -> None:
    """Whatever is answered, a browser is told what not to do with it."""
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        answer = client.post("/", content=b"x" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_nothing_is_allowed_that_is_not_ours(run: FakeRun) -> None:
    """The policies name neither another place nor `unsafe-inline`, and no viewer is loaded from elsewhere."""
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        for path in ("/", "/curve.svg", "/api/v1/overview", "/openapi.json"):
            policy = client.get(path).headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "http" not in policy
            assert "data:" not in policy
        assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


NAMES = frozenset({"run.example.org"})


@pytest.mark.parametrize(
    "host",
    [
        "run.example.org",
        "RUN.example.org.:8080",
        "127.0.0.1:8080",
        "[::1]:8080",
        "192.0.2.7",
        "localhost",
        "coordinator:80",
    ],
)
def test_the_runs_own_names_are_answered(host: str) -> None:
    """By its names, by addresses, and by names without a dot, such as a container's."""
    client = TestClient(an_app(names=NAMES))
    assert client.get("/healthz", headers={"host": host}).status_code != 421


@pytest.mark.parametrize(
    "host", ["evil.example", "run.example.org.evil.example:8080", "127.0.0.1.evil.example", "a@b.c"]
)
def test_another_name_is_refused(host: str) -> None:
    """A name that a stranger made to mean this machine reaches nothing; the sentence says where to add a name."""
    answer = TestClient(an_app(names=NAMES)).get("/healthz", headers={"host": host})
    assert answer.status_code == 421
    assert "web_hosts" in answer.json()["detail"]


def test_a_proxy_that_is_not_believed_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """The log says once what to set where a proxy on this machine serves the page."""
    app = an_app()
    for address in ("192.0.2.7", "127.0.0.1", "127.0.0.1"):
        TestClient(app, client=(address, 50_000)).get("/", headers={"x-forwarded-for": "192.0.2.9"})
    (line,) = [message for message in caplog.messages if "trusted_proxies" in message]
    assert "127.0.0.1" in line
