"""The HTTP server: uvicorn in the event loop of the gRPC server, without uvicorn's signal handlers.

The server adds limits that uvicorn lacks: a timeout for receiving a complete request, however
slowly its bytes arrive; a minimum rate at which clients must read; and a maximum number of
connections per address, except for proxies that are trusted to send their clients' addresses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from auth.errors import ManyhandsError, PortTakenError
from coordinator.throttling.rate_limits import CallerPlaces, http_caller

STOP_GRACE_S = 2  # timeout for open requests on shutdown; browsers never close event streams


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections: in total, per caller, and for each connection."""

    connections: int = 1536
    connections_per_caller: int = 64  # a school may share one address; a browser opens six connections
    request_s: float = 15.0  # timeout for receiving a request, measured from connecting or the previous response
    reading_s: float = 20.0  # interval between checks of a slow client
    read_bytes: int = 4096  # minimum number of bytes that a slow client reads between checks
    head_bytes: int = 16 * 1024  # maximum size of the request line and headers
    keep_alive_s: int = 5


_ARRIVED = {h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR}


class BoundedConnection(H11Protocol):
    """A uvicorn connection with `ConnectionLimits`; all connections of a server share `places`."""

    def __init__(
        self, *, limits: ConnectionLimits, places: CallerPlaces, trusted: frozenset[str], **uvicorn: Any
    ) -> None:
        super().__init__(**uvicorn)
        self._limits, self._places, self._trusted = limits, places, trusted
        self._caller: str | None = None  # the client's address while the connection has a slot
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Reserve a slot; abort the connection if none is free."""
        super().connection_made(transport)
        caller = http_caller(self.client)
        if not self._places.enter(caller, counted=caller not in self._trusted):
            transport.abort()
            return
        self._caller = caller
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the slot, and cancel the timers."""
        super().connection_lost(exc)
        _cancel(self._arriving)
        _cancel(self._reading)
        if self._caller is not None:
            self._places.leave(self._caller)
            self._caller = None

    def data_received(self, data: bytes) -> None:
        """Receive part of a request."""
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        """Start the timeout for the next request."""
        super().on_response_complete()
        self._watch_request()

    def pause_writing(self) -> None:
        """Start checking whether a slow client is still reading."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """Stop checking a client that has caught up."""
        super().resume_writing()
        _cancel(self._reading)
        self._reading = None

    def _watch_request(self) -> None:
        """Enforce the timeout for receiving a request; further bytes do not restart the timeout."""
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


class _Uvicorn(uvicorn.Server):
    """An embedded uvicorn server: sets `up` once it is serving, and does not handle signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application; raise `ManyhandsError` where uvicorn would exit the process."""
        try:
            await super().startup(sockets)
        except SystemExit as error:
            raise ManyhandsError("The dashboard did not start; the log says why.") from error
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service, which handles them for both of its servers."""
        yield


class WebServer:
    """A running web application; created by `start`."""

    def __init__(self, app: FastAPI, server: uvicorn.Server, serving: asyncio.Task[None], port: int) -> None:
        self.port = port
        self._app = app
        self.serving = serving  # task that ends when the server stops for any reason
        self._server = server

    @classmethod
    async def start(
        cls,
        app: FastAPI,
        host: str,
        port: int,
        trusted_proxies: Sequence[str] = (),
        limits: ConnectionLimits = ConnectionLimits(),  # a safe default, because the class is frozen
    ) -> WebServer:
        """Serve on host:port (port 0: any free port). Raises `PortTakenError` or the app's error.

        `trusted_proxies` are addresses trusted to send the client's address and scheme in headers.
        """
        listening = _listen(host, port)
        config = uvicorn.Config(
            app,
            log_config=None,  # logging is configured by the process
            access_log=False,
            server_header=False,
            lifespan="on",
            http=partial(  # type: ignore[arg-type]  # a factory instead of a class
                BoundedConnection,
                limits=limits,
                places=CallerPlaces(limits.connections, limits.connections_per_caller),
                trusted=frozenset(trusted_proxies),
            ),
            ws="none",
            h11_max_incomplete_event_size=limits.head_bytes,
            timeout_keep_alive=limits.keep_alive_s,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
        server = _Uvicorn(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        up = asyncio.create_task(server.up.wait())
        await asyncio.wait({up, serving}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if serving.done():
            listening.close()
            await serving  # raises the error that stopped the server
        return cls(app, server, serving, int(listening.getsockname()[1]))

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.server_state.connections)

    async def stop(self) -> None:
        """End the event streams, close all connections, and stop the application."""
        end_streams: Callable[[], None] | None = getattr(self._app.state, "end_streams", None)
        if end_streams is not None:
            end_streams()  # otherwise the event streams would use up the whole grace period
        self._server.should_exit = True
        await self.serving


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise PortTakenError(
            f"The dashboard cannot listen on {host}:{port} ({error.strerror}); "
            "stop the program that uses the port or change `web_port` in settings.yaml."
        ) from error
    return listening
