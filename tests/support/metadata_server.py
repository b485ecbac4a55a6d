"""A cloud's metadata service on a free loopback port, as its documentation describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support.local_servers import LocalServer, in_thread

TOKEN = "a token"


class MetadataServer(LocalServer):
    """Says that the machine is its owner's until `taken_back` is set."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.taken_back = False
        self.asked: list[str] = []  # paths

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """All three clouds at once; their paths differ."""

    server: MetadataServer

    def do_PUT(self) -> None:
        allowed = "X-aws-ec2-metadata-token-ttl-seconds" in self.headers and self.path == "/latest/api/token"
        self._answer(TOKEN if allowed else None)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self._answer(self._find(self.path.partition("?")[0]))

    def _find(self, path: str) -> str | None:
        taken_back = self.server.taken_back
        if path == "/computeMetadata/v1/instance/preempted" and self.headers["Metadata-Flavor"] == "Google":
            return "TRUE" if taken_back else "FALSE"
        if path == "/latest/meta-data/spot/instance-action" and self.headers["X-aws-ec2-metadata-token"] == TOKEN:
            return json.dumps({"action": "terminate", "time": "2026-09-18T08:22:00Z"}) if taken_back else None
        if self.headers["Metadata"] == "true":
            event = {"EventType": "Preempt", "Resources": ["neighbour", *(["this-one"] if taken_back else [])]}
            return {
                "/metadata/scheduledevents": json.dumps({"DocumentIncarnation": 1, "Events": [event]}),
                "/metadata/instance/compute/name": "this-one",
            }.get(path)
        return None

    def _answer(self, body: str | None) -> None:
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())


@contextmanager
def metadata_server() -> Iterator[MetadataServer]:
    """Served for the time of the block."""
    server = MetadataServer()
    with in_thread(server):
        yield server
