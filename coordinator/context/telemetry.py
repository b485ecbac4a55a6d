"""The service's own counters: calls, refusals, reports, streams, errors of the database.

One registry for each service, so that nothing is shared between two in one process (tests). Every label has few values,
all of them ours: methods, status codes, kinds of refusals. `coordinator.web.state.metrics` has figures of the store.
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
)  # as long as the peer likes: no latency of ours
_CODES = {code.value[0]: code.name.lower() for code in grpc.StatusCode}


class Telemetry:
    """The service's own counters."""

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
            "How long answers of the control plane took, but those that last as long as the peer likes.",
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
            "Connections to the control plane that got no place, or lost it to another before their first call.",
            registry=registry,
        )
        self.streams_open = Gauge(
            "manyhands_event_streams_open", "Open streams of server-sent events.", registry=registry
        )
        self.database_errors = Counter(
            "manyhands_database_errors", "Statements and connections that failed in this service.", registry=registry
        )
        for verdict in ("accepted", "ahead", "refused"):
            self.reports.labels(verdict)  # known from the first scrape on: else a first increase is not seen as one

    def watch(self, engine: Engine) -> None:
        """Count the database's errors; two who write the same row at once are none, one of them tries again."""

        @event.listens_for(engine, "handle_error")
        def _on_error(context: ExceptionContext) -> None:
            if not isinstance(context.sqlalchemy_exception, IntegrityError):
                self.database_errors.inc()

    @contextmanager
    def call(self, method: str, context: Any) -> Iterator[None]:
        """Count one call of the control plane by its status, and time it if it is answered."""
        began, unsaid = time.perf_counter(), "ok"
        try:
            yield
        except asyncio.CancelledError:  # the peer is gone, or the service stops
            unsaid = "cancelled"
            raise
        except BaseException:  # counted and raised again: the call has no known status
            unsaid = "unknown"
            raise
        finally:
            code = _CODES.get(_number(context.code()), "unknown")
            self.calls.labels(method, unsaid if code == "ok" else code).inc()
            if method not in LASTING:
                self.call_seconds.labels(method).observe(time.perf_counter() - began)


def _number(code: Any) -> int:
    """A status as gRPC gives it: an enumeration, its number, or nothing for OK."""
    return int(code.value[0] if isinstance(code, grpc.StatusCode) else code or 0)
