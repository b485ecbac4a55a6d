"""The HTTP server beside the gRPC server in one event loop: uvicorn, without its own handling of signals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import uvicorn
from fastapi import FastAPI

from auth.errors import ManyhandsError, PortTakenError
from coordinator.throttling.rate_limits import CallerPlaces
from coordinator.web.http.connection import BoundedConnection, ConnectionLimits

STOP_GRACE_S = 2  # browsers hold event streams open for ever


class _Uvicorn(uvicorn.Server):
    """uvicorn as a part of another program: it says when it is up, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen; uvicorn would end the whole process where that fails."""
        try:
            await super().startup(sockets)
        except SystemExit as error:
            raise ManyhandsError("The dashboard did not start; the log says why.") from error
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The service handles signals, for both of its servers."""
        yield


class WebServer:
    """A running web application; made by `start`."""

    def __init__(self, app: FastAPI, server: uvicorn.Server, serving: asyncio.Task[None], port: int) -> None:
        self.port = port
        self._app = app
        self.serving = serving  # ends when the server does, for whatever reason
        self._server = server

    @classmethod
    async def start(
        cls,
        app: FastAPI,
        host: str,
        port: int,
        trusted_proxies: Sequence[str] = (),
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  # frozen
    ) -> WebServer:
        """Serve on host:port (0: any free port, see `port`); raises `PortTakenError`, or if the app does not start.

        `trusted_proxies` are addresses whose word on the client's address and scheme is believed.
        """
        listening = _listen(host, port)
        config = uvicorn.Config(
            app,
            log_config=None,  # the process decides how it logs
            access_log=False,
            server_header=False,
            lifespan="on",
            http=partial(  # type: ignore[arg-type]  # what makes a connection; uvicorn would take a class
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
            await serving  # raises why
        return cls(app, server, serving, int(listening.getsockname()[1]))

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._server.server_state.connections)

    async def stop(self) -> None:
        """Close all connections and end the application's background work; its `state.end_streams` ends its streams."""
        end_streams: Callable[[], None] | None = getattr(self._app.state, "end_streams", None)
        if end_streams is not None:
            end_streams()  # else they would have to be cut off
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
            "stop what uses the port or change `web_port` in settings.yaml."
        ) from error
    return listening
