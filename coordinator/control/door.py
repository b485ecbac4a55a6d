"""The front proxy of the control plane, which accepts TCP connections and relays them to gRPC.

gRPC cannot limit connections per address, so one address could open any number, at about 26 KiB
each. gRPC therefore listens on a UNIX socket that only this user can access, and the proxy listens
on the public port. A connection takes a slot before any byte is read, and is forwarded to gRPC once
its first TLS record is complete.

Connections that have made no call yet (`strangers`) have their own slots, so they cannot displace
sessions. When these slots are full, a new connection replaces the oldest stranger from the address
with the most strangers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from auth.errors import UnreachableError
from coordinator.context.telemetry import Telemetry
from coordinator.run.settings import CALLS_PER_ADDRESS, CALLS_PER_ADDRESS_PER_MINUTE, MAX_SESSIONS, Settings
from coordinator.throttling.rate_limits import Address, CallerPlaces, host_address, network_of
from peer.runtime.temporary import make_short_folder

logger = logging.getLogger(__name__)

SPARE_CALLS = 2048  # number of calls allowed besides sessions: joins, renewals, downloads, anonymous calls
DESCRIPTORS = 3  # file descriptors per connection: two in the proxy, one in gRPC
BACKLOG = 512
PIECE_BYTES = 64 * 1024
RECORD_HEAD_BYTES, RECORD_BYTES, HANDSHAKE_RECORD = 5, 16 * 1024, 0x16  # sizes and handshake type of a TLS record
CONNECT_AGAIN_S = 0.05
FLUSH_S = 10.0
TOUCH_EVERY_S = 3600.0


@dataclass(frozen=True)
class DoorLimits:
    """Limits of the control plane, in total and per address."""

    sessions: int = MAX_SESSIONS
    calls: int = MAX_SESSIONS + SPARE_CALLS  # number of concurrent calls; a session is one call
    calls_per_caller: int = CALLS_PER_ADDRESS  # also limits each caller's connections
    calls_per_minute: int = CALLS_PER_ADDRESS_PER_MINUTE  # limit per address
    connections: int = MAX_SESSIONS + SPARE_CALLS
    strangers: int = SPARE_CALLS  # number of connections that have made no call yet
    handshake_s: float = 10.0  # timeout for the TLS handshake
    first_message_s: float = 15.0
    reading_s: float = 60.0  # timeout for the peer to read one message of a response
    idle_s: float = 60.0  # maximum duration of a connection without a call

    @classmethod
    def of(cls, settings: Settings) -> DoorLimits:
        """Create the limits from the operator's settings."""
        most = settings.max_sessions + SPARE_CALLS
        return cls(
            sessions=settings.max_sessions,
            calls=most,
            calls_per_caller=settings.calls_per_address,
            calls_per_minute=settings.calls_per_address_per_minute,
            connections=most,
        )

    @property
    def first_call_s(self) -> float:
        """The timeout from a connection's first TLS record to its first call."""
        return self.handshake_s + self.first_message_s


class Door:
    """A proxy that accepts connections and relays them to gRPC; used from one event loop."""

    def __init__(self, limits: DoorLimits, telemetry: Telemetry) -> None:
        self.limits = limits
        self._refused = telemetry.connections_refused
        self._folder = make_short_folder()
        self._places = CallerPlaces(limits.connections, limits.calls_per_caller)
        self._strangers = _Strangers()
        telemetry.connections_open.set_function(lambda: len(self._places))
        self._visitors: dict[str, _Visitor] = {}  # name of the socket to gRPC -> incoming connection
        self._names = map(str, itertools.count(1))
        self._listening: asyncio.Server | None = None
        self._touching: asyncio.TimerHandle | None = None

    @property
    def upstream(self) -> Path:
        """The UNIX socket on which gRPC must listen."""
        return self._folder / "grpc"

    async def open(self, bound: socket.socket) -> None:
        """Accept connections on this socket; gRPC must already be listening."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(partial(_Visitor, self), sock=bound, backlog=BACKLOG)
        self._touch()

    def shut(self) -> None:
        """Stop accepting connections; existing ones continue."""
        if self._listening is not None:
            self._listening.close()

    def close(self) -> None:
        """Close all connections and remove the socket."""
        self.shut()
        if self._touching is not None:
            self._touching.cancel()
        for visitor in {*self._visitors.values(), *self._strangers}:
            visitor.transport.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    def caller(self, context: Any) -> Address:
        """Return the address of a call's peer. Raises `UnreachableError` if the connection has ended."""
        return self._visitor_of(context).address

    def welcome(self, context: Any) -> None:
        """Free the `strangers` slot of this call's connection, and cancel its timeout."""
        visitor = self._visitor_of(context)
        visitor.stop_waiting()
        self._strangers.remove(visitor)

    def _visitor_of(self, context: Any) -> _Visitor:
        visitor = self._visitors.get(context.peer().rpartition("/")[2])
        if visitor is None:
            raise UnreachableError("The connection of this call has ended.")
        return visitor

    def admit(self, visitor: _Visitor) -> bool:
        """Reserve a slot for a new connection until `leave`. Return False if none is free."""
        if not self._places.enter(visitor.caller):
            self._refused.inc()
            return False
        if len(self._strangers) >= self.limits.strangers:
            self._refused.inc()
            self._strangers.remove(given_up := self._strangers.oldest_of_the_most())
            given_up.transport.abort()
        self._strangers.add(visitor)
        return True

    def leave(self, visitor: _Visitor) -> None:
        """Free the slot of a connection."""
        self._places.leave(visitor.caller)
        self._strangers.remove(visitor)
        self._visitors.pop(visitor.name, None)

    async def connect(self, visitor: _Visitor) -> _End:
        """Open a connection to gRPC from a socket with a unique name. Raises `OSError` on failure."""
        visitor.name = next(self._names)
        named = self._folder / visitor.name
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind(str(named))
            try:
                while not _connects(connection, self.upstream):  # noqa: ASYNC110 - the visitor's timeout ends it
                    await asyncio.sleep(CONNECT_AGAIN_S)
            finally:
                named.unlink(missing_ok=True)  # gRPC has read the connection's name and does not need the file
            self._visitors[visitor.name] = visitor
            _, end = await asyncio.get_running_loop().create_unix_connection(_End, sock=connection)
        except BaseException:
            connection.close()
            raise
        return end

    def _touch(self) -> None:
        """Update the socket's timestamps, because some systems delete old temporary files."""
        for path in (self._folder, self.upstream):
            with suppress(OSError):
                os.utime(path)
        self._touching = asyncio.get_running_loop().call_later(TOUCH_EVERY_S, self._touch)


class _Strangers:
    """A set of connections that have made no call yet, grouped by caller, oldest first."""

    def __init__(self) -> None:
        self._of: dict[str, dict[_Visitor, None]] = {}
        self._count = 0

    def add(self, visitor: _Visitor) -> None:
        self._of.setdefault(visitor.caller, {})[visitor] = None
        self._count += 1

    def remove(self, visitor: _Visitor) -> None:
        others = self._of.get(visitor.caller, {})
        if visitor in others:
            del others[visitor]
            self._count -= 1
        if not others:
            self._of.pop(visitor.caller, None)  # frees the memory of a caller without strangers

    def oldest_of_the_most(self) -> _Visitor:
        """Find the caller with the most connections in this set, and return the oldest of these."""
        most = max(self._of, key=lambda caller: len(self._of[caller]))
        return next(iter(self._of[most]))

    def __iter__(self) -> Iterator[_Visitor]:
        return itertools.chain.from_iterable(self._of.values())

    def __len__(self) -> int:
        return self._count


class _End(asyncio.BufferedProtocol):
    """One end of a relayed connection, which forwards data as fast as the other end accepts it."""

    _piece = memoryview(bytearray(PIECE_BYTES))  # shared by all ends, because data is copied before the next read

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._piece

    def buffer_updated(self, count: int) -> None:
        self.receive(bytes(self._piece[:count]))

    def receive(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the other end when its buffer is empty, or after `FLUSH_S`."""
        other, self.other = self.other, None
        if other is None:
            return
        other.other = None
        other.transport.close()
        if other.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(FLUSH_S, other.transport.abort)


class _Visitor(_End):
    """An incoming connection, relayed once its first TLS record is complete."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self.name = ""
        self._door = door
        self._has_place = False
        self._arrived = bytearray()
        self._deadline: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reserve a slot; abort the connection if none is free."""
        super().connection_made(transport)
        peername = transport.get_extra_info("peername")
        if peername is None:  # the client has already disconnected
            self.transport.abort()
            return
        self.address = host_address(peername[0])
        self.caller = network_of(self.address)
        self._has_place = self._door.admit(self)
        if not self._has_place:
            self.transport.abort()
            return
        self._wait_for(self._door.limits.handshake_s)

    def receive(self, data: bytes) -> None:
        """Forward received data, or collect it until the first TLS record is complete."""
        if self.other is not None:
            super().receive(data)
            return
        self._arrived += data
        whole = _has_whole_record(self._arrived)
        if whole is None:
            self.transport.abort()
        elif whole:
            self.transport.pause_reading()
            self._wait_for(self._door.limits.first_call_s)
            self._connecting = asyncio.create_task(self._connect())

    def stop_waiting(self) -> None:
        """Cancel the timeout of the handshake or the first call."""
        if self._deadline is not None:
            self._deadline.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.stop_waiting()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._has_place:
            self._door.leave(self)

    def _wait_for(self, time_s: float) -> None:
        self.stop_waiting()
        self._deadline = asyncio.get_running_loop().call_later(time_s, self.transport.abort)

    async def _connect(self) -> None:
        try:
            end = await self._door.connect(self)
        except OSError as error:  # the error must affect only this connection
            logger.error("The control plane's door cannot reach gRPC (%s): restart the service", error)
            self.transport.abort()
            return
        self.other, end.other = end, self
        end.transport.write(bytes(self._arrived))
        self._arrived.clear()
        self.transport.resume_reading()


def _has_whole_record(arrived: bytearray) -> bool | None:
    """Return whether the first TLS record is complete, or None if too long or not a handshake."""
    if arrived[0] != HANDSHAKE_RECORD:
        return None
    length = int.from_bytes(arrived[3:RECORD_HEAD_BYTES], "big")
    if len(arrived) < RECORD_HEAD_BYTES:
        return False
    return len(arrived) >= RECORD_HEAD_BYTES + length if length <= RECORD_BYTES else None


def _connects(connection: socket.socket, path: Path) -> bool:
    """Try to connect. Return False if the listen queue is full. Raises `OSError` for other failures."""
    try:
        connection.connect(str(path))
    except (BlockingIOError, ConnectionRefusedError):  # raised for a full queue on Linux and on macOS, respectively
        return False
    return True
