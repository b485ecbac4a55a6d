"""Prometheus metrics of the service process: calls, refusals, reports, streams, database errors.

Each service has its own registry, so that two services in one process (in tests) are independent.
Labels have few, fixed values. `coordinator.web.state.metrics` has metrics from the database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import IntegrityError

LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LASTING = frozenset(
    {"Session", "Login", "Probe", "FetchFile", "Watch"}
)  # long-lived calls, which the peer ends, so their duration is meaningless
_CODES = {code.value[0]: code.name.lower() for code in grpc.StatusCode}


class Telemetry:
    """The metrics of one service, and their registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.calls = Counter(
            "manyhands_control_calls",
            "Calls of the control plane that have ended.",
            ["method", "code"],
            registry=registry,
        )
        self.call_seconds = Histogram(
            "manyhands_control_call_duration_seconds",
            "Duration of control plane calls, except long-lived calls.",
            ["method"],
            buckets=LATENCY_BOUNDS_S,
            registry=registry,
        )
        self.refusals = Counter("manyhands_refusals", "Requests that were refused.", ["kind"], registry=registry)
        self.reports = Counter(
            "manyhands_reports", "Reports of steps that devices sent.", ["verdict"], registry=registry
        )
        self.sessions_open = Gauge(
            "manyhands_sessions_open", "Sessions of devices with this service.", registry=registry
        )
        self.connections_open = Gauge(
            "manyhands_control_connections_open", "Connections to the control plane.", registry=registry
        )
        self.connections_refused = Counter(
            "manyhands_control_connections_refused",
            "Connections to the control plane that were refused, or replaced before their first call.",
            registry=registry,
        )
        self.streams_open = Gauge(
            "manyhands_event_streams_open", "Open streams of server-sent events.", registry=registry
        )
        self.database_errors = Counter(
            "manyhands_database_errors", "Statements and connections that failed in this service.", registry=registry
        )
        for verdict in ("accepted", "ahead", "refused"):
            self.reports.labels(verdict)  # start at 0; otherwise, Prometheus misses the first increase

    def watch(self, engine: Engine) -> None:
        """Count the engine's errors, except write conflicts (`IntegrityError`), which are retried."""

        @event.listens_for(engine, "handle_error")
        def _on_error(context: ExceptionContext) -> None:
            if not isinstance(context.sqlalchemy_exception, IntegrityError):
                self.database_errors.inc()

    @contextmanager
    def call(self, method: str, context: Any) -> Iterator[None]:
        """Count a control plane call by status, and time it unless the method is in `LASTING`."""
        began, unsaid = time.perf_counter(), "ok"
        try:
            yield
        except asyncio.CancelledError:  # the peer has disconnected, or the service is stopping
            unsaid = "cancelled"
            raise
        except BaseException:  # the call ends without a gRPC status
            unsaid = "unknown"
            raise
        finally:
            code = _CODES.get(_number(context.code()), "unknown")
            self.calls.labels(method, unsaid if code == "ok" else code).inc()
            if method not in LASTING:
                self.call_seconds.labels(method).observe(time.perf_counter() - began)


def _number(code: Any) -> int:
    """Return a gRPC status as a number; `code` is an enumeration member, a number, or None for OK."""
    return int(code.value[0] if isinstance(code, grpc.StatusCode) else code or 0)
