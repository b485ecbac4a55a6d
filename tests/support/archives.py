"""Archives of made-up runs, and a web host that knows nothing but files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from coordinator.web.archive import ArchiveManifest, Wish, write_archive
from tests.support.local_servers import LocalServer, in_thread
from tests.support.served_page import FakeRun


def archived(run: FakeRun, out: Path) -> ArchiveManifest:
    """Written in a thread of its own: in this one the browser's driver runs an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(write_archive, run.directory, Wish(out), run.services.clock()).result()


@contextmanager
def plain_host(folder: Path) -> Iterator[str]:
    """A web host that knows nothing but files; its address."""

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

    with in_thread(LocalServer(Files)) as address:
        yield f"{address}/"
