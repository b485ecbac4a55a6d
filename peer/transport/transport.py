"""The interface through which a peer's node exchanges messages with other nodes.

A stream carries requests to a peer's handler and responses back, in both directions at any time.
Messages arrive whole and in order; if some do not arrive, the stream ends with an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

MOST_STREAMS = 16  # of one caller and name; a lost caller's streams may stay open for a minute
# (the caller's authenticated peer ID, requests) -> responses
Handler = Callable[[str, AsyncIterator[bytes]], AsyncGenerator[bytes, None]]


class TransportError(Exception):
    """A peer cannot be reached, its stream has broken off, or its handler has failed."""


class Transport(Protocol):
    """One peer's access to the network."""

    @property
    def peer_id(self) -> str:
        """This peer's ID (base58)."""

    async def serve(self, name: str, handler: Handler) -> None:
        """Answer streams of this name with a handler.

        The handler is closed when the caller closes its stream or is lost. If it fails, the caller
        receives only the type of the exception. A caller has at most `MOST_STREAMS` open streams of
        a name; further ones fail. A peer cannot open a stream to itself.
        Raises `ValueError` if the name is already served.
        """

    def stream(self, peer: str, name: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send requests to a peer's handler; yield its responses.

        The stream opens at the first iteration. Requests left after the last response are dropped.
        Raises `TransportError` if not all responses arrive, `ValueError` if a request is longer
        than `auth.swarm.streams.MAX_MESSAGE_BYTES`, and any error that `requests` raises.
        """


async def call(transport: Transport, peer: str, name: str, request: bytes) -> bytes:
    """Send one request to a peer's handler; return the only response. Raises `TransportError`."""

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
