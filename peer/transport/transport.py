"""The interface through which a peer's node exchanges messages with other nodes.

A stream carries requests to a peer's handler and its responses back, both at any time and at the
sender's pace. Messages arrive whole, in order, and either all of them or with an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

# Of the caller's authenticated peer ID and the requests, makes the responses.
Handler = Callable[[str, AsyncIterator[bytes]], AsyncGenerator[bytes, None]]


class TransportError(Exception):
    """A peer cannot be reached, its stream has broken off, or its handler has failed."""


class Transport(Protocol):
    """One peer's end of the network."""

    @property
    def peer_id(self) -> str:
        """This peer's ID (base58)."""

    async def serve(self, name: str, handler: Handler) -> None:
        """Answer streams of this name with a handler.

        The handler is closed when the caller closes its stream or is lost. A caller whose handler
        fails is told the type of the exception only.
        """

    def stream(self, peer: str, name: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send requests to a peer's handler; yield its responses.

        The stream opens with the first iteration. After the last response, requests that are left
        are dropped. Raises `TransportError` if not all responses arrive, `ValueError` if a request
        is too long (`auth.swarm.streams.MAX_MESSAGE_BYTES`), and any error of `requests`.
        """


async def call(transport: Transport, peer: str, name: str, request: bytes) -> bytes:
    """Send one request to a peer's handler; return its one response. Raises `TransportError`."""

    async def requests() -> AsyncIterator[bytes]:
        yield request

    response = None
    async with aclosing(transport.stream(peer, name, requests())) as responses:
        async for message in responses:
            if response is not None:
                raise TransportError(f"`{name}` of {peer} sent more than one response.")
            response = message
    if response is None:
        raise TransportError(f"`{name}` of {peer} sent no response.")
    return response
