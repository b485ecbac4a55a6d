"""The HTTP API: schemathesis against its own OpenAPI description, and malformed HTTP over real sockets."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import given, strategies as st
from schemathesis import GenerationMode
from starlette.types import Receive, Scope, Send

from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from tests.support.inputs import inputs, spoilt
from tests.support.served_page import FakeRun, PageServer, fake_run
from tests.support.waiting import PATIENCE_S

ENDLESS = "/api/v1/events"
GET = b"GET /api/v1/steps?after=1&limit=3 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
CHUNKED = b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


class Crowd:
    """ASGI middleware: each request comes from another network, so that no address asks too often."""

    def __init__(self, app: object) -> None:
        self._app, self._numbers = app, itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        number = next(self._numbers)
        scope["client"] = (f"{11 + (number >> 16) % 100}.{number >> 8 & 255}.{number & 255}.1", 5000)
        await self._app(scope, receive, send)  # type: ignore[operator]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A run of two members after a few steps."""
    with fake_run(tmp_path_factory.mktemp("run")) as made:
        made.add_member("Ada")
        made.add_member("<script>")
        for step in (1, 2, 3):
            made.add_step(step, 8.0 - step)
        made.add_checkpoint(3)
        yield made


@pytest.fixture(scope="module")
def operations(run: FakeRun) -> Iterator[list[Any]]:
    """What the API says that it can be asked, without the stream that never ends."""
    app = create_app(WebState(run.directory, run.services))
    with TestClient(app):
        schema = schemathesis.openapi.from_asgi("/openapi.json", Crowd(app)).exclude(path=ENDLESS)
        yield [found.ok() for found in schema.get_all_operations()]


@inputs(80)
@given(data=st.data())
def test_the_api_keeps_its_word(operations: list[Any], data: st.DataObject) -> None:
    """Whatever is asked, as described or not: no server error, and answers as they are described."""
    operation, mode = data.draw(st.sampled_from(operations)), data.draw(st.sampled_from(GenerationMode))
    response = data.draw(operation.as_strategy(generation_mode=mode)).call()
    assert response.status_code < 500
    assert b"Traceback" not in response.content  # some answers are files
    if response.status_code == 200:
        operation.validate_response(response)


@pytest.fixture(scope="module")
def page(run: FakeRun) -> Iterator[PageServer]:
    """A real server, which must answer a good request after everything."""
    server = PageServer(run)
    yield server
    assert said_to(server, GET, 1).startswith(b"HTTP/1.1 200")
    server.close()


def said_to(page: PageServer, request: bytes, caller: int, patience_s: float = PATIENCE_S) -> bytes:
    """The answer's beginning to raw bytes, sent from one of the loopback's many addresses; empty if none came."""
    source = f"127.{1 + caller // 62_500 % 200}.{caller // 250 % 250}.{1 + caller % 250}"
    with socket.create_connection(("127.0.0.1", page.port), PATIENCE_S, (source, 0)) as line:
        line.settimeout(patience_s)
        try:
            line.sendall(request)
            return line.recv(65_536)
        except OSError:  # it waits for the rest of the request, or was cut off
            return b""


CALLERS = itertools.count(1000)


@inputs(150)
@given(st.sampled_from((GET, POST, CHUNKED)).flatmap(spoilt) | st.binary(max_size=200))
def test_malformed_http(page: PageServer, request: bytes) -> None:
    """Raw bytes get an answer below 500 or none, and no stack trace."""
    answer = said_to(page, request, next(CALLERS), 0.1)
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert not answer.startswith(b"HTTP/1.1 5")
    assert b"Traceback" not in answer


@pytest.mark.parametrize("name", ["..%2f..%2fsettings.yaml", "%00", "%ff", "a" * 5000, "%e2%80%ae"])
def test_names_of_files_on_the_page(page: PageServer, name: str) -> None:
    """A file is looked up by its name, and never opened by it."""
    answer = said_to(page, f"GET /static/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), 2)
    assert answer.startswith(b"HTTP/1.1 4")
