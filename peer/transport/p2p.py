"""Streams between peers over hivemind's p2p daemon."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from auth.swarm.streams import SHOWN_CHARS, StreamError, answer, ask
from peer.transport.transport import MOST_STREAMS, Handler, TransportError


class P2PTransport:
    """One peer's access to the network, over a running p2p daemon."""

    def __init__(self, p2p: P2P) -> None:
        self._p2p = p2p
        self.peer_id: str = p2p.peer_id.to_base58()
        self._served = set[str]()

    async def serve(self, name: str, handler: Handler) -> None:
        """Answer streams of this name with a handler; the daemon has authenticated their callers.

        Raises `ValueError` if the name is already served.
        """

        streams = Counter[str]()

        async def accept(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            caller = info.peer_id.to_base58()
            if streams[caller] >= MOST_STREAMS:
                writer.close()
                return
            streams[caller] += 1
            try:
                await answer(reader, writer, partial(handler, caller), f"`{name}` for {caller}")
            finally:
                streams[caller] -= 1
                if not streams[caller]:
                    del streams[caller]

        if name in self._served:  # hivemind would replace the handler, and then raise
            raise ValueError(f"`{name}` is served already")
        self._served.add(name)
        await self._p2p.add_binary_stream_handler(name, accept)

    async def stream(self, peer: str, name: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send requests to a peer's handler; yield its responses."""
        try:
            _, reader, writer = await self._p2p.call_binary_stream_handler(PeerID.from_base58(peer), name)
        except (P2PDaemonError, OSError, EOFError, ValueError) as error:
            raise TransportError(f"`{name}` of {peer} cannot be reached: {str(error)[:SHOWN_CHARS]!r}.") from error
        try:
            async with aclosing(ask(f"`{name}` of {peer}", reader, writer, requests)) as responses:
                async for response in responses:
                    yield response
        except StreamError as error:
            raise TransportError(f"{error}.") from error
