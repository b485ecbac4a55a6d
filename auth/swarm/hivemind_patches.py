"""Fixes for hivemind, applied by `patch_hivemind()` before a process creates its first node.

Streams between peers end completely or with an error. In hivemind, the server closes a stream after
the last message, and the p2p daemon then resets the stream. Over QUIC, a reset drops data in
flight, but the client accepts the partial data as complete: for example 60 of a state's 128
tensors, or no response to a request to join a group. With this fix, the server sends an end marker
and waits for the client to close the stream; without the marker, the client reports an error. A
client that receives the whole response early announces that it will send no more requests, and
lets the server close. Otherwise, dropped requests would fill the connection's flow-control window.

Messages have at most `MAX_NESTING` levels of nesting. hivemind encodes a tuple as a message within
a message, and decodes messages recursively without a limit. Ten kilobytes of nested tuples overflow
the C stack, so a single record could crash every node that reads it.

DHT nodes use `auth.swarm.protocol`, which serves only members and sends only new entries. Storage
keeps the version of an entry that expires later. hivemind's storage also does, but deletes this
version when the earlier one expires. hivemind also keeps the expiration times of old versions; this
fix drops them when they far outnumber the entries, because updates would fill the memory.

A node can use named relays immediately; hivemind has no such option and needs minutes to find
relays. The daemon's own DHT can be disabled; `P2P.reach`, if set, then resolves unknown addresses
(`auth.swarm.addresses`).

When a p2p daemon dies, its exit code and last output lines are logged; no other log has them.

hivemind uses swarm time (`auth.clock`). MANYHANDS_P2PD can select another p2p daemon. The daemon's
sockets are in the temporary directory instead of /tmp, because hivemind never deletes them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import hivemind.dht.node
import hivemind.p2p.p2p_daemon
from google.protobuf.message import DecodeError, Message
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.proto.p2pd_pb2 import RPCError
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import TimedStorage

from auth.clock import swarm_time
from auth.errors import ConfigError
from auth.swarm.addresses import is_reached
from auth.swarm.protocol import MemberProtocol

logger = logging.getLogger(__name__)
LINGER_S = 60.0  # timeout for the last message; a slow connection may have a full window to send
END = RPCError(message="end of the stream")
STOPPED = RPCError(message="stopped asking")  # replaces the remaining requests, so that the server closes
SPARE_TIMES = 64  # maximum number of outdated expiration times, beyond the number of entries
SHOWN_CHARS = 200  # length limit for logged remote errors and daemon output lines
LAST_LINES = 8  # number of the daemon's last output lines to log when it dies
DAEMON, DAEMON_VARIABLE = "p2pd", "MANYHANDS_P2PD"  # program name, and environment variable for a replacement
MAX_NESTING = 16  # hivemind's own messages have three levels
_reading = threading.local()
_decode: Any = MSGPackSerializer._decode_ext_types  # hivemind's original function
Handler = Callable[[AsyncIterator[Message], P2PContext], AsyncGenerator[Message, None]]


@cache
def patch_hivemind() -> None:
    """Patch hivemind in this process and its forks; repeated calls have no effect.

    Raises `ConfigError` if MANYHANDS_P2PD is not the path of an executable named `p2pd`.
    """
    if own := os.environ.get(DAEMON_VARIABLE):
        program = _daemon_at(Path(own))
        vars(hivemind.p2p.p2p_daemon)["path"] = lambda *_: nullcontext(program)  # replaces hivemind's lookup
    P2P._add_protobuf_stream_handler = _add_stream_handler
    P2P._iterate_protobuf_stream_handler = _call_stream_handler
    P2P._call_unary_protobuf_handler = _call_reached
    P2P.call_binary_stream_handler = _open_reached
    P2P._read_outputs = _follow_daemon
    P2P.DHT_MODE_MAPPING["off"] = {}
    P2P._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/hivemind-"
    P2P.FORCE_REACHABILITY_MAPPING["relayed"] = {**P2P.FORCE_REACHABILITY_MAPPING["private"], "relayDiscovery": 0}
    MSGPackSerializer._decode_ext_types = _decode_bounded
    hivemind.dht.node.DHTProtocol = MemberProtocol
    TimedStorage.store = _store_newer
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "hivemind"]:
        if hasattr(module, "get_dht_time"):  # each module has its own reference to the function
            vars(module)["get_dht_time"] = swarm_time


def _daemon_at(program: Path) -> Path:
    """Check and return the path of the replacement daemon, which other code finds by its name."""
    if program.name != DAEMON or not program.is_file() or not os.access(program, os.X_OK):
        raise ConfigError(
            f"{DAEMON_VARIABLE} names {program}, which is no program `{DAEMON}` that can be run: name the one that you "
            "built, or unset the variable to use hivemind's."
        )
    return program


_store = TimedStorage.store


def _store_newer(storage: Any, key: Any, value: Any, expiration_time: float) -> bool:
    """Store a value if it expires later than the stored value. Return whether it was stored."""
    held = storage.data.get(key)
    if held is not None and expiration_time <= held.expiration_time:
        return False
    is_stored = bool(_store(storage, key, value, expiration_time))
    if len(storage.expiration_heap) > 2 * len(storage.data) + SPARE_TIMES:
        storage.expiration_heap = sorted(storage.key_to_heap.values())  # a sorted list is a valid heap
    return is_stored


def _decode_bounded(type_code: int, data: bytes) -> Any:
    """Decode a message. Raises `ValueError` if the nesting is too deep."""
    depth = getattr(_reading, "depth", 0)
    if depth >= MAX_NESTING:
        raise ValueError(f"a message is nested more than {MAX_NESTING} levels deep")
    _reading.depth = depth + 1
    try:
        return _decode(type_code, data)
    finally:
        _reading.depth = depth


async def _follow_daemon(p2p: P2P, ready: asyncio.Future[None]) -> None:
    """Log the daemon's output and any unexpected exit; a normal shutdown cancels this task."""
    child: asyncio.subprocess.Process = p2p._child
    assert child.stdout is not None
    lines = deque[str](maxlen=LAST_LINES)
    while read := await child.stdout.readline():
        if line := read.rstrip().decode(errors="ignore"):
            lines.append(line)
            p2p._log_p2pd_message(line)
            if line.startswith("Peer ID:"):
                ready.set_result(None)
    code = await child.wait()
    ending = f"exit code {code}" + (f", {signal.Signals(-code).name}" if code < 0 else "")
    if ready.done():
        last = " | ".join(line[:SHOWN_CHARS] for line in lines)
        logger.error("The p2p daemon has died (%s); its last lines: %s", ending, last)
    else:
        ready.set_exception(P2PDaemonError(f"Daemon failed to start ({ending}): {lines[-1] if lines else 'no word'}"))


_call: Any = P2P._call_unary_protobuf_handler
_open: Any = P2P.call_binary_stream_handler


async def _call_reached(p2p: P2P, peer_id: PeerID, *call: Any) -> Any:
    try:
        return await _call(p2p, peer_id, *call)
    except P2PDaemonError as error:
        if not await is_reached(p2p, peer_id, error):
            raise
    return await _call(p2p, peer_id, *call)


async def _open_reached(p2p: P2P, peer_id: PeerID, name: str) -> Any:
    try:
        return await _open(p2p, peer_id, name)
    except P2PDaemonError as error:
        if not await is_reached(p2p, peer_id, error):
            raise
    return await _open(p2p, peer_id, name)


async def _add_stream_handler(
    p2p: P2P, name: str, handler: Handler, request_type: type[Message], max_prefetch: int = 5, balanced: bool = False
) -> None:
    async def serve(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        context = P2PContext(handle_name=name, local_id=p2p.peer_id, remote_id=info.peer_id)
        requests: asyncio.Queue[Message | None] = asyncio.Queue(max_prefetch)
        answered = asyncio.Event()
        with closing(writer):
            answering = asyncio.create_task(_answer(handler(_taken(requests), context), writer, context))
            receiving = asyncio.create_task(_receive(request_type, reader, requests, answered))
            try:
                await asyncio.wait({answering, receiving}, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    answered.set()
                    if not requests.empty():  # unblock a task waiting for space in the queue
                        requests.get_nowait()
                    await asyncio.wait({receiving}, timeout=LINGER_S)
            finally:
                answering.cancel()
                receiving.cancel()

    await p2p.add_binary_stream_handler(name, serve, balanced=balanced)


async def _taken(requests: asyncio.Queue[Message | None]) -> AsyncIterator[Message]:
    while (request := await requests.get()) is not None:
        yield request


async def _answer(responses: AsyncGenerator[Message, None], writer: asyncio.StreamWriter, context: P2PContext) -> None:
    """Send the handler's responses, then an end marker or the type of the handler's exception."""
    last = END
    try:
        async with aclosing(responses):
            async for response in responses:
                await P2P.send_protobuf(response, writer)
    except Exception as error:  # noqa: BLE001 - fault boundary: the client receives the error, as in hivemind
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.WARNING  # usually a disconnect
        logger.log(level, "`%s` for %s failed: %.300r", context.handle_name, context.remote_id, error)
        last = RPCError(message=type(error).__name__)
    with suppress(ConnectionError):
        await P2P.send_protobuf(last, writer)


async def _receive(
    request_type: type[Message],
    reader: asyncio.StreamReader,
    requests: asyncio.Queue[Message | None],
    answered: asyncio.Event,
) -> None:
    """Queue the client's requests until the response is sent; return once the stream may be closed."""
    try:
        while True:
            request, word = await P2P.receive_protobuf(request_type, reader)  # `request` is None at the end
            if word == STOPPED:
                return
            if not answered.is_set():
                await requests.put(request)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    except (TypeError, DecodeError) as error:
        logger.warning("what a peer sent is no request: %.300r", error)


async def _call_stream_handler(
    p2p: P2P, peer_id: PeerID, name: str, requests: AsyncIterator[Message], response_type: type[Message]
) -> AsyncIterator[Message]:
    """Call a handler. The iterator raises `P2PHandlerError` if the server or the stream fails."""
    _, reader, writer = await p2p.call_binary_stream_handler(peer_id, name)
    asking = _Asking(requests, writer)
    return _received(f"`{name}` of {peer_id}", asking, reader, writer, response_type)


async def _received(
    server: str,
    asking: _Asking,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    response_type: type[Message],
) -> AsyncIterator[Message]:
    with closing(writer):
        try:
            while (response := await _next_response(server, reader, response_type)) is not None:
                yield response
            await asking.end(reader)
        finally:
            asking.task.cancel()


async def _next_response(server: str, reader: asyncio.StreamReader, response_type: type[Message]) -> Message | None:
    """Return the next response, or None after the last one. Raises `P2PHandlerError` on failure."""
    try:
        response, error = await P2P.receive_protobuf(response_type, reader)
    except (asyncio.IncompleteReadError, OSError, TypeError, DecodeError) as broken:
        raise P2PHandlerError(f"The stream from {server} broke off") from broken
    if error is not None and error != END:
        raise P2PHandlerError(f"{server} failed: {error.message[:SHOWN_CHARS]!r}")
    return response


class _Asking:
    """A task that sends a client's requests."""

    def __init__(self, requests: AsyncIterator[Message], writer: asyncio.StreamWriter) -> None:
        self._requests, self._writer = requests, writer
        self._writing = asyncio.Lock()  # held while a message is being sent
        self.task = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        async for request in self._requests:
            async with self._writing:
                await P2P.send_protobuf(request, self._writer)
        async with self._writing:
            await P2P.send_protobuf(P2P.END_OF_STREAM, self._writer)

    async def end(self, reader: asyncio.StreamReader) -> None:
        """Stop sending requests after the last response; reraise an error of the request iterator."""
        if self.task.done():
            self.task.result()
            return
        try:
            await asyncio.wait_for(self._stop(reader), LINGER_S)
        except (asyncio.TimeoutError, ConnectionError):
            return

    async def _stop(self, reader: asyncio.StreamReader) -> None:
        async with self._writing:
            self.task.cancel()
            await P2P.send_protobuf(STOPPED, self._writer)
        while await reader.read(1 << 16):
            pass
