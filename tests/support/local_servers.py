"""Web servers of a test's own, on a free port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any


class LocalServer(ThreadingHTTPServer):
    """Has requests answered by this class, which gets these attributes; says nothing: a test's output is its own."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], **attributes: object) -> None:
        quiet: Any = type("Handler", (handler,), {"log_message": lambda *_: None, **attributes})
        super().__init__(("127.0.0.1", 0), quiet)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is nothing to tell of."""


@contextmanager
def in_thread(server: BaseServer) -> Iterator[str]:
    """Serve in a thread of its own until the block ends; yields the address."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
