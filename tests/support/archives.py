"""Archives of made-up runs, and a web host that knows nothing but files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from coordinator.web.archive import ArchiveManifest, Wish, write_archive
from tests.support.served_page import FakeRun


def archived(run: FakeRun, out: Path) -> ArchiveManifest:
    """Written in a thread of its own: in this one the browser's driver runs an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(write_archive, run.directory, Wish(out), run.services.clock()).result()


@contextmanager
def plain_host(folder: Path) -> Iterator[str]:
    """A web host that knows nothing but files; its address."""
    handler = partial(_Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """A test's output is its own."""
