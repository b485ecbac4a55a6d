"""Bounds that uvicorn lacks on an HTTP connection: on slow or silent clients, and on the connections of one address.

A request must have arrived whole within a time, however its bytes are dealt out; the client must read the answer; and
one address holds only so many connections. A proxy that is trusted to name its clients may hold them all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.throttling.rate_limits import CallerPlaces, http_caller


@dataclass(frozen=True)
class ConnectionLimits:
    """What all connections together, and each of them, may cost."""

    connections: int = 1536
    connections_per_caller: int = 64  # a school behind one address, a browser's six each
    request_s: float = 15.0  # until a request's last byte, and the next one's after an answer
    reading_s: float = 20.0  # between two looks at whether a reader reads
    read_bytes: int = 4096  # what it must have read by then
    head_bytes: int = 16 * 1024  # of a request's line and headers
    keep_alive_s: int = 5


_ARRIVED = {h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR}


class BoundedConnection(H11Protocol):
    """uvicorn's connection with `ConnectionLimits`; `places` is shared by all of a server's."""

    def __init__(
        self, *, limits: ConnectionLimits, places: CallerPlaces, trusted: frozenset[str], **uvicorn: Any
    ) -> None:
        super().__init__(**uvicorn)
        self._limits, self._places, self._trusted = limits, places, trusted
        self._caller: str | None = None  # once it has a place
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or end what has none without a word."""
        super().connection_made(transport)
        caller = http_caller(self.client)
        if not self._places.enter(caller, counted=caller not in self._trusted):
            transport.abort()
            return
        self._caller = caller
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        super().connection_lost(exc)
        _cancel(self._arriving)
        _cancel(self._reading)
        if self._caller is not None:
            self._places.leave(self._caller)
            self._caller = None

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        """The next request's time begins."""
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        """The reader is behind: from now on it is looked at."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        _cancel(self._reading)
        self._reading = None

    def _watch_request(self) -> None:
        """The clock runs from a request's beginning, not from its last byte: a drop now and then gains no time."""
        if self.conn.their_state in _ARRIVED or self.transport.is_closing():
            _cancel(self._arriving)
            self._arriving = None
        elif self._arriving is None:
            self._arriving = self.loop.call_later(self._limits.request_s, self.transport.abort)

    def _look_again(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self._limits.reading_s, self._check_reader, unread)

    def _check_reader(self, unread_before: int) -> None:
        if unread_before - self.transport.get_write_buffer_size() < self._limits.read_bytes:
            self.transport.abort()
        else:
            self._look_again()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
