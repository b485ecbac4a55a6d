"""HTTPS requests to a provider, without redirects and with limits on time and response size."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client

from auth.errors import ProviderError
from auth.openid.provider import require_safe_url

MAX_ANSWER_BYTES = 512 * 1024
STEP_TIMEOUT_S = 10.0  # timeout for connecting and for each read
TIMEOUT_S = 20.0  # timeout for the whole response
REREAD_S = 3600.0  # time after which changed certificate authorities are noticed
# Compressed responses are rejected because they could expand to any size.
HEADERS = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "manyhands"}


class _BoundedStream(httpx2.AsyncByteStream):
    """A response body limited to `MAX_ANSWER_BYTES`."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for piece in self._stream:
            received += len(piece)
            if received > MAX_ANSWER_BYTES:
                raise httpx2.TransportError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """A transport that rejects unsafe URLs and limits the size of responses."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=_tls_context(int(time.monotonic() / REREAD_S)))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises `TransportError` if the response is compressed."""
        require_safe_url(str(request.url))
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.TransportError("the answer is compressed, which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(response.stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


@lru_cache(maxsize=1)
def _tls_context(_hour: int) -> ssl.SSLContext:
    """Load the CA certificates at most once an hour, because loading blocks for 30 ms."""
    return httpx2.create_ssl_context()


@asynccontextmanager
async def oauth_client(**options: Any) -> AsyncIterator[Any]:
    """Open an Authlib client with the bounded transport; closing the client discards its tokens."""
    client = AsyncOAuth2Client(
        transport=BoundedTransport(), timeout=STEP_TIMEOUT_S, follow_redirects=False, headers=HEADERS, **options
    )
    try:
        yield client
    finally:
        await client.aclose()


@contextmanager
def asking(title: str) -> Iterator[None]:
    """Convert any failure of a provider request in the block into a `ProviderError`."""
    try:
        yield
    except OAuthError as error:
        reason = f"{error.error!s:.60}: {error.description or ''!s:.200}".rstrip(": ")
        raise ProviderError(f"{title} refused the coordinator's request ({printable(reason)}).") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, asyncio.TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise ProviderError(f"{title} cannot be reached ({printable(reason)}): try again later.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ProviderError(f"{title} answers what cannot be understood ({printable(str(error))}).") from error


async def fetch_json(title: str, url: str) -> dict[str, Any]:
    """Fetch a JSON object. Raises `ProviderError` on failure."""
    with asking(title):
        async with oauth_client() as client:
            response = await asyncio.wait_for(client.get(url, auth=None), TIMEOUT_S)
        return json_object(response)


def json_object(response: Any) -> dict[str, Any]:
    """Parse a response as a JSON object. Raises `httpx2.HTTPError` or `ValueError` on failure."""
    if response.status_code != 200:
        raise httpx2.TransportError(f"its answer has the status {response.status_code}")
    content = json.loads(response.content)
    if not isinstance(content, dict):
        raise ValueError("the answer is no JSON object")
    return content


def printable(text: str) -> str:
    """Reduce untrusted text to at most 300 printable characters, for messages."""
    return "".join(character for character in text if character.isprintable())[:300].rstrip(".")
