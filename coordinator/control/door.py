"""The control plane's door: it accepts the connections of the public port, bounded for each address, and relays them.

gRPC accepts connections by itself and knows no bound for an address: one address that opened many took the places of
all others, at some 26 KiB each. So gRPC listens on a UNIX socket that only this user reaches, and the door on the port.
A connection gets its place before a byte of it is read. gRPC hears of it only with a whole first record of TLS.

A connection that has made no call yet is a stranger's. Strangers have places of their own, so they cannot take those of
sessions. When these are full, the oldest stranger of the address that has the most gives way to the newest.
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

SPARE_CALLS = 2048  # beside the sessions: who joins, renews, fetches and asks
DESCRIPTORS = 3  # of a connection: the door's two ends, and gRPC's
BACKLOG = 512
PIECE_BYTES = 64 * 1024
RECORD_HEAD_BYTES, RECORD_BYTES, HANDSHAKE_RECORD = 5, 16 * 1024, 0x16  # of TLS
CONNECT_AGAIN_S = 0.05
FLUSH_S = 10.0
TOUCH_EVERY_S = 3600.0


@dataclass(frozen=True)
class DoorLimits:
    """What all callers together, and each address, may have of the control plane."""

    sessions: int = MAX_SESSIONS
    calls: int = MAX_SESSIONS + SPARE_CALLS  # open at once; a session is one
    calls_per_caller: int = CALLS_PER_ADDRESS  # and connections: one without a call is of no use
    calls_per_minute: int = CALLS_PER_ADDRESS_PER_MINUTE  # of one address
    connections: int = MAX_SESSIONS + SPARE_CALLS
    strangers: int = SPARE_CALLS  # connections that have made no call yet
    handshake_s: float = 10.0  # until TLS is agreed on
    first_message_s: float = 15.0
    reading_s: float = 60.0  # until one message of an answer is taken
    idle_s: float = 60.0  # a connection without a call

    @classmethod
    def of(cls, settings: Settings) -> DoorLimits:
        """What an operator has set."""
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
        """The time from a connection's first record to its first call."""
        return self.handshake_s + self.first_message_s


class Door:
    """Accepts and relays connections; used from one event loop."""

    def __init__(self, limits: DoorLimits, telemetry: Telemetry) -> None:
        self.limits = limits
        self._refused = telemetry.connections_refused
        self._folder = make_short_folder()
        self._places = CallerPlaces(limits.connections, limits.calls_per_caller)
        self._strangers = _Strangers()
        telemetry.connections_open.set_function(lambda: len(self._places))
        self._visitors: dict[str, _Visitor] = {}  # by the name of the socket to gRPC
        self._names = map(str, itertools.count(1))
        self._listening: asyncio.Server | None = None
        self._touching: asyncio.TimerHandle | None = None

    @property
    def upstream(self) -> Path:
        """The UNIX socket on which gRPC has to listen."""
        return self._folder / "grpc"

    async def open(self, bound: socket.socket) -> None:
        """Accept connections on this socket from now on; gRPC listens already."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(partial(_Visitor, self), sock=bound, backlog=BACKLOG)
        self._touch()

    def shut(self) -> None:
        """Accept no more; what is relayed goes on."""
        if self._listening is not None:
            self._listening.close()

    def close(self) -> None:
        """End all connections, and remove the socket."""
        self.shut()
        if self._touching is not None:
            self._touching.cancel()
        for visitor in {*self._visitors.values(), *self._strangers}:
            visitor.transport.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    def caller(self, context: Any) -> Address:
        """Return the address from which a call comes; raises `UnreachableError` if its connection has ended."""
        return self._visitor_of(context).address

    def welcome(self, context: Any) -> None:
        """Count the connection of this call as a stranger's no more."""
        visitor = self._visitor_of(context)
        visitor.stop_waiting()
        self._strangers.remove(visitor)

    def _visitor_of(self, context: Any) -> _Visitor:
        visitor = self._visitors.get(context.peer().rpartition("/")[2])
        if visitor is None:
            raise UnreachableError("The connection of this call has ended.")
        return visitor

    def admit(self, visitor: _Visitor) -> bool:
        """Give a new connection a place, to be given back by `leave`; whether there was one."""
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
        """Take the place of a connection back."""
        self._places.leave(visitor.caller)
        self._strangers.remove(visitor)
        self._visitors.pop(visitor.name, None)

    async def connect(self, visitor: _Visitor) -> _End:
        """Connect a visitor to gRPC by a socket of its own name; raises `OSError`."""
        visitor.name = next(self._names)
        named = self._folder / visitor.name
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind(str(named))
            try:
                while not _connects(connection, self.upstream):  # noqa: ASYNC110 - the visitor's time limit ends this
                    await asyncio.sleep(CONNECT_AGAIN_S)
            finally:
                named.unlink(missing_ok=True)  # gRPC has the name from the socket
            self._visitors[visitor.name] = visitor
            _, end = await asyncio.get_running_loop().create_unix_connection(_End, sock=connection)
        except BaseException:
            connection.close()
            raise
        return end

    def _touch(self) -> None:
        """Keep the socket young: some systems remove old files from their folder for temporary ones."""
        for path in (self._folder, self.upstream):
            with suppress(OSError):
                os.utime(path)
        self._touching = asyncio.get_running_loop().call_later(TOUCH_EVERY_S, self._touch)


class _Strangers:
    """Connections without a call so far, by caller, the oldest first."""

    def __init__(self) -> None:
        self._of: dict[str, dict[_Visitor, None]] = {}
        self._count = 0

    def add(self, visitor: _Visitor) -> None:
        self._of.setdefault(visitor.caller, {})[visitor] = None
        self._count += 1

    def remove(self, visitor: _Visitor) -> None:
        """Remove a visitor, if it is still a stranger."""
        others = self._of.get(visitor.caller, {})
        if visitor in others:
            del others[visitor]
            self._count -= 1
        if not others:
            self._of.pop(visitor.caller, None)  # a caller who is gone costs no memory

    def oldest_of_the_most(self) -> _Visitor:
        """Return the oldest stranger of the caller that has the most."""
        most = max(self._of, key=lambda caller: len(self._of[caller]))
        return next(iter(self._of[most]))

    def __iter__(self) -> Iterator[_Visitor]:
        return itertools.chain.from_iterable(self._of.values())

    def __len__(self) -> int:
        return self._count


class _End(asyncio.BufferedProtocol):
    """One end of a relayed connection: what it receives leaves at the other end, as fast as that takes it."""

    _piece = memoryview(bytearray(PIECE_BYTES))  # shared: what was received is copied before anything else is

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
        """Pass on what has arrived."""
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the other end once it has taken what it was sent, or has had the time for it."""
        other, self.other = self.other, None
        if other is None:
            return
        other.other = None
        other.transport.close()
        if other.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(FLUSH_S, other.transport.abort)


class _Visitor(_End):
    """A connection from outside; it is relayed once its first record of TLS is there."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self.name = ""
        self._door = door
        self._has_place = False
        self._arrived = bytearray()
        self._deadline: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or end a connection that has none without a word."""
        super().connection_made(transport)
        peername = transport.get_extra_info("peername")
        if peername is None:  # it has ended already
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
        """Pass on what has arrived, or collect the first record."""
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
        """Wait for no first call any more."""
        if self._deadline is not None:
            self._deadline.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        """Give the place back."""
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
        except OSError as error:  # the boundary of a connection
            logger.error("The control plane's door cannot reach gRPC (%s): restart the service", error)
            self.transport.abort()
            return
        self.other, end.other = end, self
        end.transport.write(bytes(self._arrived))
        self._arrived.clear()
        self.transport.resume_reading()


def _has_whole_record(arrived: bytearray) -> bool | None:
    """Return whether a handshake's first TLS record has arrived; None if it is no such record, or too long for one."""
    if arrived[0] != HANDSHAKE_RECORD:
        return None
    length = int.from_bytes(arrived[3:RECORD_HEAD_BYTES], "big")
    if len(arrived) < RECORD_HEAD_BYTES:
        return False
    return len(arrived) >= RECORD_HEAD_BYTES + length if length <= RECORD_BYTES else None


def _connects(connection: socket.socket, path: Path) -> bool:
    """Connect, and return whether there was room in the queue of new connections; raises `OSError`."""
    try:
        connection.connect(str(path))
    except (BlockingIOError, ConnectionRefusedError):  # the queue is full on Linux, on macOS
        return False
    return True
