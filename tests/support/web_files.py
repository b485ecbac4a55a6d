"""A web server for tests, which can be told to fail in the ways in which real ones do."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.support.local_servers import LocalServer, in_thread


class WebFiles:
    """Files in memory, by name, with the faults of each."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures: Counter[str] = Counter()  # so many answers of a file are an error 503
        self.limits: dict[str, list[str]] = {}  # the `Retry-After` of the next answers of a file, each an error 429
        self.cut: Counter[str] = Counter()  # so many answers of a file end in the middle
        self.redirects: dict[str, str] = {}  # to which address
        self.encodings: dict[str, str] = {}  # that the head names
        self.without_ranges: set[str] = set()
        self.stalled: set[str] = set()  # of these only the head comes
        self.bytes_sent: Counter[str] = Counter()
        self.released = threading.Event()  # set when the server ends: nothing stalls any longer
        self.address = ""

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def serve_files() -> Iterator[WebFiles]:
    """The server, on a free port, as long as the block lasts."""
    web = WebFiles()
    with in_thread(LocalServer(_Handler, web=web)) as web.address:
        try:
            yield web
        finally:
            web.released.set()


class _Handler(BaseHTTPRequestHandler):
    web: WebFiles

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        name = self.path.lstrip("/")
        if name in self.web.redirects:
            self.send_response(301)
            self.send_header("Location", self.web.redirects[name])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if name not in self.web.files:
            self.send_error(404)
            return
        if self.web.limits.get(name):
            self.send_response(429)
            self.send_header("Retry-After", self.web.limits[name].pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.web.failures[name] > 0:
            self.web.failures[name] -= 1
            self.send_error(503)
            return
        self._send(name, self.web.files[name], body)

    def _send(self, name: str, content: bytes, body: bool) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        wants_range = found is not None and name not in self.web.without_ranges
        part = content
        if found is not None and wants_range:
            part = content[int(found[1]) : int(found[2] or len(content)) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {found[1]}-{int(found[1]) + len(part) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if name in self.web.encodings:
            self.send_header("Content-Encoding", self.web.encodings[name])
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self._send_body(name, part)

    def _send_body(self, name: str, part: bytes) -> None:
        if name in self.web.stalled:
            self.web.released.wait()
            return
        if self.web.cut[name] > 0 and len(part) > 1:
            self.web.cut[name] -= 1
            part = part[: len(part) // 2]
        self.web.bytes_sent[name] += len(part)
        try:
            self.wfile.write(part)
        except ConnectionError:  # the reader had enough
            self.close_connection = True
