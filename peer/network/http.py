"""HTTP requests with a timeout for each step and a size limit for each response.

Each failure is reported in one sentence. Proxies in the environment are used, except for loopback.
httpx2 is imported on the first request: the import takes 65 ms, and most commands make no requests.
Three modules use other clients: logins (`auth.openid.http`) use HTTPS without proxies, training
data is read through fsspec, and `peer.installer` runs before anything is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from auth.errors import UnreachableError

if TYPE_CHECKING:
    from httpx2 import Response

MAX_ANSWER_BYTES = 64 * 2**20
TIMEOUT_S = 60.0  # timeout for the connection, and for each chunk of a response
NOT_BY_PROXY = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
HEADERS = {"accept-encoding": "identity", "user-agent": "manyhands"}  # no compression, so that the size limit holds


@contextmanager
def asking(method: str, url: str, *, timeout_s: float = TIMEOUT_S, **options: Any) -> Iterator[Response]:
    """Send a request with httpx2's `options` and yield the response. Raises httpx2's errors."""
    from httpx2 import Client

    with (
        Client(timeout=timeout_s, headers=HEADERS, mounts=NOT_BY_PROXY) as client,
        client.stream(method, url, **options) as response,
    ):
        yield response


def beginning(response: Response, most_bytes: int) -> bytes:
    """Return up to `most_bytes` bytes from the beginning of a response."""
    found = b""
    for piece in response.iter_raw():
        found += piece
        if len(found) >= most_bytes:
            break
    return found[:most_bytes]


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Convert connection and protocol errors in the `with` block to `UnreachableError`."""
    from httpx2 import HTTPError, InvalidURL

    try:
        yield
    except (HTTPError, InvalidURL, OSError, ValueError, ImportError) as error:  # ImportError: no SOCKS package
        raise UnreachableError(f"{url} does not answer ({str(error) or type(error).__name__}).") from error


def download(url: str, most_bytes: int) -> Iterator[bytes]:
    """Yield a response in chunks. Raises `UnreachableError` on failure or above `most_bytes`."""
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
    """Return a complete response. Raises `UnreachableError`, like `download`."""
    return b"".join(download(url, most_bytes))
