"""Requests to web servers: every step bounded in time, every answer in size, one sentence for each failure.

The environment's proxies are used, except for this machine's own addresses. httpx2 is loaded with the first request: it
takes 65 ms, and most commands make none. Three ways to the web have rules of their own: logins (`auth.openid.http`) ask
only over HTTPS and without a proxy, training data goes through fsspec, and `peer.installer` runs before anything is
installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from auth.errors import UnreachableError

if TYPE_CHECKING:
    from httpx2 import Response

MAX_ANSWER_BYTES = 64 * 2**20
TIMEOUT_S = 60.0  # to connect, or between two pieces of an answer
NOT_BY_PROXY = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))  # a proxy would ask itself
HEADERS = {"accept-encoding": "identity", "user-agent": "manyhands"}  # what is compressed could unpack to any size


@contextmanager
def asking(method: str, url: str, *, timeout_s: float = TIMEOUT_S, **options: Any) -> Iterator[Response]:
    """Ask, with httpx2's `options`; in the block its answer can be read. Raises httpx2's errors."""
    from httpx2 import Client

    with (
        Client(timeout=timeout_s, headers=HEADERS, mounts=NOT_BY_PROXY) as client,
        client.stream(method, url, **options) as response,
    ):
        yield response


def beginning(response: Response, most_bytes: int) -> bytes:
    """Up to so many bytes of an answer."""
    found = b""
    for piece in response.iter_raw():
        found += piece
        if len(found) >= most_bytes:
            break
    return found[:most_bytes]


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Within the block, a server that does not answer becomes an `UnreachableError`."""
    from httpx2 import HTTPError, InvalidURL

    try:
        yield
    except (HTTPError, InvalidURL, OSError, ValueError, ImportError) as error:  # the last: a SOCKS proxy
        raise UnreachableError(f"{url} does not answer ({str(error) or type(error).__name__}).") from error


def download(url: str, most_bytes: int) -> Iterator[bytes]:
    """Yield the pieces of a file or an answer, redirects followed. Raises `UnreachableError`, also if it is longer."""
    received = 0
    with reaching(url), asking("GET", url, follow_redirects=True) as response:
        if not response.is_success:
            raise UnreachableError(f"{url} answers {response.status_code}: check the address, and the version there.")
        for piece in response.iter_raw():
            received += len(piece)
            if received > most_bytes:
                raise UnreachableError(f"{url} answers more than the {most_bytes} bytes that are allowed.")
            yield piece


def fetch(url: str, most_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """The whole of an answer. Raises `UnreachableError`."""
    return b"".join(download(url, most_bytes))
