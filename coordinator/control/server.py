"""The control plane's gRPC server: TLS, limits, health checks, call metrics, session updates.

`coordinator.control.door` accepts connections, `coordinator.control.admission` limits calls, and
`coordinator.control.servicer` handles them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from auth.errors import StorageError
from coordinator.context.changes import Ear
from coordinator.context.services import RunServices
from coordinator.context.telemetry import Telemetry
from coordinator.control.admission import Doorkeeper
from coordinator.control.door import Door, DoorLimits
from coordinator.control.news import SessionNews
from coordinator.control.servicer import ControlServicer, NonceStore, nonce_key
from coordinator.control.session import SessionServer
from coordinator.control.visitors import Visitors
from coordinator.run.ports import Listener, bound_socket
from coordinator.store.notify import Topic
from peer.protocol import MAX_PEER_MESSAGE_BYTES, control_pb2, control_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE_NAME: str = control_pb2.DESCRIPTOR.services_by_name["Control"].full_name
REFRESH_EVERY_S = 1.0
STOP_GRACE_S = 3.0

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_PEER_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", 16),  # limit on streams per connection; a peer needs two
    # Limits on peers' pings. Peers that do not answer the server's pings are disconnected.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 4),
)


@dataclass(frozen=True)
class TlsFiles:
    """Paths of the server's key and certificate (PEM)."""

    key: Path
    certificate: Path


class ControlServer:
    """A running control plane; created by `start`."""

    def __init__(
        self,
        server: grpc.aio.Server,
        door: Door,
        port: int,
        sessions: SessionServer,
        news: SessionNews,
        visitors: Visitors,
        checks: _HealthChecks,
        ear: Ear,
    ) -> None:
        self.port = port
        self._server, self._door, self._sessions, self._news = server, door, sessions, news
        self._visitors, self._checks = visitors, checks
        self._watching = asyncio.create_task(self._watch(ear))

    @classmethod
    async def start(
        cls,
        services: RunServices,
        host: str,
        port: int,
        tls: TlsFiles,
        limits: DoorLimits = DoorLimits(),  # noqa: B008 # the class is frozen
    ) -> ControlServer:
        """Serve on host:port (0: any free port, stored in `port`). Raises `PortTakenError`."""
        nonces = NonceStore(nonce_key(tls.key), services.database, services.clock)
        credentials = _read_credentials(tls)
        listening = bound_socket(Listener(host, port, "the control plane", "`control_port` in settings.yaml"))
        door = Door(limits, services.telemetry)
        sessions = SessionServer(services, door)
        news = SessionNews(services, sessions.live)
        visitors = Visitors(services, time.monotonic)
        servicer = ControlServicer(services, nonces, sessions, visitors, door)
        checks = _HealthChecks()
        await checks.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        keeper = Doorkeeper(limits, door, time.monotonic)
        server = grpc.aio.server(interceptors=[CallCounter(services.telemetry), keeper], options=_options(limits))
        control_pb2_grpc.add_ControlServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        server.add_secure_port(f"unix:{door.upstream}", credentials)
        await server.start()
        await door.open(listening)
        ear = services.bell.ear(Topic.REVOCATIONS, Topic.SESSIONS)
        return cls(server, door, listening.getsockname()[1], sessions, news, visitors, checks, ear)

    async def stop(self) -> None:
        """Shut down gracefully: fail health checks, end sessions (peers reconnect), stop serving."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._checks.enter_graceful_shutdown()
        self._sessions.end_all()
        await self._visitors.close()
        self._door.shut()
        await self._server.stop(STOP_GRACE_S)
        self._door.close()
        await self._sessions.close()

    async def _watch(self, ear: Ear) -> None:
        while True:
            ear.look()
            try:
                await self._news.refresh()
            except Exception:  # keep polling after any error, because the next poll may succeed
                logger.exception("Cannot read the store for the open sessions; trying again")
            await ear.rest(REFRESH_EVERY_S)


class CallCounter(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no annotations
    """The outermost interceptor, which counts all calls of known methods, including rejected ones.

    The inner interceptor, `Doorkeeper`, has already made every handler take a stream of requests.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any | None:
        """Wrap a method's handler with a counter. Ignore unknown methods, to limit the labels."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.rpartition("/")[2]
        behaviour = handler.stream_unary or handler.stream_stream

        async def counted(requests: AsyncIterator[Any], context: Any) -> Any:
            with self._telemetry.call(method, context):
                return await behaviour(requests, context)

        wrap = grpc.stream_unary_rpc_method_handler if handler.stream_unary else grpc.stream_stream_rpc_method_handler
        return wrap(counted, handler.request_deserializer, handler.response_serializer)


class _HealthChecks(health.aio.HealthServicer):  # type: ignore[misc]  # gRPC has no annotations
    """The standard health service without `Watch`, whose streams could stay open indefinitely."""

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002, N802  # the service's names
        """Reject the call; `Check` returns the same information."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Use Check.")
        yield


def _options(limits: DoorLimits) -> list[tuple[str, int]]:
    return [
        *_OPTIONS,
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server_handshake_timeout_ms", round(1000 * limits.handshake_s)),
        ("grpc.max_connection_idle_ms", round(1000 * limits.idle_s)),
    ]


def _read_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    try:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    except OSError as error:
        raise StorageError(f"Cannot read the TLS key or certificate: {error}.") from error
    return grpc.ssl_server_credentials((pair,))
