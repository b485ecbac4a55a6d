"""A chat's server on this machine, which answers as it is told and remembers what it was asked to show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.local_servers import LocalServer, in_thread


@dataclass
class Shown:
    """One request."""

    method: str
    path: str
    content: dict[str, Any]
    headers: dict[str, str]


@dataclass
class ChatServer:
    """What it was asked, and what it will answer: the status, 0 to hang up without a word; 200 when nothing is left."""

    address: str = ""
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)  # of each answer
    body: bytes = b"{}"
    asked: list[Shown] = field(default_factory=list)


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """The server, on a free port, as long as the block lasts."""
    chat = ChatServer()
    with in_thread(LocalServer(_Handler, chat=chat)) as chat.address:
        yield chat


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.chat.asked.append(Shown(method, self.path, content, headers))
        status = self.chat.answers.pop(0) if self.chat.answers else 200
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in self.chat.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.chat.body)))
        self.end_headers()
        self.wfile.write(self.chat.body)
