"""Streams of messages between two peers, which end completely or with an error.

When a server closes a stream, its p2p daemon resets the stream. Over QUIC, a reset drops data in
flight, and the client would accept the partial data as complete: for example 60 of a state's 128
tensors, or no response to a request to join a group. Therefore the server sends an end marker and
waits for the client to close the stream; without the marker, the client reports an error. A client
that receives the whole response early announces that it will send no more requests, and lets the
server close. Otherwise, dropped requests would fill the connection's flow-control window.

A message is one marker byte, its length (8 bytes, big-endian), and its content, as in hivemind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing, suppress
from typing import Final

from google.protobuf.message import DecodeError
from hivemind.proto.p2pd_pb2 import RPCError

logger = logging.getLogger(__name__)
LINGER_S = 60.0  # timeout for the last message; a slow connection may have a full window to send
PREFETCHED_BYTES = 2**21  # maximum size of the requests queued for the handler; then the client must wait
REQUEST_BYTES = 64  # memory overhead of a queued request
MAX_MESSAGE_BYTES = 2**24
CHUNK_BYTES = 2**16
SHOWN_CHARS = 200  # maximum length of a remote error, or of a daemon's output line, in messages
LENGTH_BYTES: Final = 8
MESSAGE, CONTROL = b"\x00", b"\x01"  # markers: a message of the application, a message of this protocol
ASKED = b""  # all requests are sent
END = RPCError(message="end of the stream").SerializeToString()  # all responses are sent
STOPPED = RPCError(message="stopped asking").SerializeToString()  # sent instead of the remaining requests
Answers = Callable[[AsyncIterator[bytes]], AsyncGenerator[bytes, None]]


class StreamError(Exception):
    """A stream has broken off, or the server's handler has failed."""


async def send(writer: asyncio.StreamWriter, content: bytes, marker: bytes = MESSAGE) -> None:
    """Send a message. Raises `ConnectionError`, or `ValueError` if it is longer than `MAX_MESSAGE_BYTES`."""
    if len(content) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(content)} bytes is longer than {MAX_MESSAGE_BYTES} bytes")
    if writer.is_closing():  # uvloop would raise `RuntimeError`
        raise ConnectionResetError("the stream is closed")
    header, view = marker + len(content).to_bytes(LENGTH_BYTES, "big"), memoryview(content)
    writer.write(header + view[:CHUNK_BYTES])
    for start in range(CHUNK_BYTES, len(content), CHUNK_BYTES):
        writer.write(view[start : start + CHUNK_BYTES])
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Receive a message; return its marker and its content.

    Raises `ValueError` if the message is malformed or too long, `IncompleteReadError` or `OSError`
    if the stream breaks off.
    """
    marker = await reader.readexactly(1)
    if marker not in (MESSAGE, CONTROL):
        raise ValueError(f"a message begins with {marker!r}")
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is longer than {MAX_MESSAGE_BYTES} bytes")
    return marker, await reader.readexactly(length)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers, call: str) -> None:
    """Serve a client's stream until it is closed; `call` names the stream in log messages."""
    requests = _Requests()
    with closing(writer):
        answering = asyncio.create_task(_answer(answers(requests.taken()), writer, call))
        receiving = asyncio.create_task(_receive(reader, requests, call))
        try:
            await asyncio.wait({answering, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not (receiving.done() or answering.cancelled()):
                requests.drop()
                await asyncio.wait({receiving}, timeout=LINGER_S)
        finally:
            answering.cancel()
            receiving.cancel()


class _Requests:
    """A queue of requests for a handler, limited by total size.

    While the receiving task waits for space, it does not notice a disconnect. A limit on the number
    of requests would soon be reached if the handler reads no requests.
    """

    def __init__(self) -> None:
        self._queue = asyncio.Queue[bytes | None]()
        self._bytes = 0
        self._has_space = asyncio.Event()
        self._is_dropped = False

    async def put(self, request: bytes | None) -> None:
        while self._bytes > PREFETCHED_BYTES and not self._is_dropped:
            self._has_space.clear()
            await self._has_space.wait()
        if not self._is_dropped:
            self._bytes += REQUEST_BYTES + len(request or b"")
            self._queue.put_nowait(request)

    async def taken(self) -> AsyncIterator[bytes]:
        while (request := await self._queue.get()) is not None:
            self._bytes -= REQUEST_BYTES + len(request)
            self._has_space.set()
            yield request

    def drop(self) -> None:
        """Drop all later requests, and let a waiting `put` return."""
        self._is_dropped = True
        self._has_space.set()


async def _answer(responses: AsyncGenerator[bytes, None], writer: asyncio.StreamWriter, call: str) -> None:
    """Send the handler's responses, then an end marker or the type of the handler's exception."""
    last = END
    try:
        async with aclosing(responses):
            async for response in responses:
                await send(writer, response)
    except Exception as error:  # noqa: BLE001 - fault boundary: the client receives the error, as in hivemind
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.WARNING  # usually a disconnect
        logger.log(level, "%s failed: %.300r", call, error)
        last = RPCError(message=type(error).__name__).SerializeToString()
    with suppress(ConnectionError):
        await send(writer, last, CONTROL)


async def _receive(reader: asyncio.StreamReader, requests: _Requests, call: str) -> None:
    """Queue the client's requests until the response is sent; return when the stream may be closed."""
    try:
        while True:
            marker, content = await receive(reader)
            if marker == CONTROL and content == STOPPED:
                return
            await requests.put(content if marker == MESSAGE else None)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    except ValueError as error:
        logger.warning("%s: invalid request: %s", call, error)


async def ask(
    server: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """Send requests and yield the server's responses.

    Raises `StreamError` unless all responses arrive, and re-raises any error of `requests`.
    """
    asking = _Asking(requests, writer)
    with closing(writer):
        try:
            while (response := await _next_response(server, reader)) is not None:
                yield response
            await asking.end(reader)
        except StreamError:
            asking.raise_failure()
            raise
        finally:
            asking.task.cancel()


async def _next_response(server: str, reader: asyncio.StreamReader) -> bytes | None:
    """Return the next response, or None after the last one. Raises `StreamError` on failure."""
    try:
        marker, content = await receive(reader)
        if marker == MESSAGE:
            return content
        if content == END:
            return None
        failure = RPCError.FromString(content).message
    except (asyncio.IncompleteReadError, OSError, ValueError, DecodeError) as broken:
        raise StreamError(f"The stream from {server} broke off") from broken
    raise StreamError(f"{server} failed: {failure[:SHOWN_CHARS]!r}")


class _BrokenOffError(StreamError):
    """A request cannot be sent, because the stream has broken off."""


class _Asking:
    """A task that sends a client's requests."""

    def __init__(self, requests: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
        self._requests, self._writer = requests, writer
        self._writing = asyncio.Lock()  # held while a message is being sent
        self.task = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            async for request in self._requests:
                await self._send(request)
            await self._send(ASKED, CONTROL)
        except Exception:
            self._writer.close()  # otherwise, the server would wait for the remaining requests
            raise

    async def _send(self, content: bytes, marker: bytes = MESSAGE) -> None:
        async with self._writing:
            try:
                await send(self._writer, content, marker)
            except ConnectionError as error:  # the request iterator may raise one, too
                raise _BrokenOffError("The stream broke off") from error

    def raise_failure(self) -> None:
        """Re-raise an error of the request iterator, if there was one."""
        failure = self.task.exception() if self.task.done() and not self.task.cancelled() else None
        if failure is not None and not isinstance(failure, _BrokenOffError):
            raise failure

    async def end(self, reader: asyncio.StreamReader) -> None:
        """Stop sending requests after the last response; re-raise an error of the request iterator."""
        if self.task.done():
            self.raise_failure()
            return
        with suppress(asyncio.TimeoutError, ConnectionError):
            await asyncio.wait_for(self._stop(reader), LINGER_S)

    async def _stop(self, reader: asyncio.StreamReader) -> None:
        async with self._writing:
            self.task.cancel()
            await send(self._writer, STOPPED, CONTROL)
        while await reader.read(CHUNK_BYTES):
            pass
