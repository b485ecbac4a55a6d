"""How fast the line between this machine and the coordinator is, measured, both ways."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from auth.errors import UnreachableError
from peer.protocol import MAX_PROBE_BYTES, PROBE_CHUNK_BYTES, control_pb2


@dataclass(frozen=True)
class LineSpeed:
    """Bytes per second between this machine and the coordinator."""

    up: float
    down: float


async def measure_line(call: Any, limit_s: float, stopwatch: Callable[[], float]) -> LineSpeed:
    """Send for `limit_s` or up to `MAX_PROBE_BYTES`, then receive as long or as much."""
    noise = secrets.token_bytes(PROBE_CHUNK_BYTES)  # so that nothing on the way compresses it
    await call.write(control_pb2.ProbeUp(download_bytes=MAX_PROBE_BYTES))
    await call.read()  # a refusal comes here, in its own words
    began, sent = stopwatch(), 0
    while sent < MAX_PROBE_BYTES and stopwatch() - began < limit_s:
        await call.write(control_pb2.ProbeUp(data=noise))
        sent += len(noise)
    await call.done_writing()
    first = await call.read()
    if first is grpc.aio.EOF or first.received_bytes != sent:
        raise UnreachableError("The coordinator did not take in what was sent to measure the line.")
    turned = stopwatch()
    received = 0
    while received < MAX_PROBE_BYTES and stopwatch() - turned < limit_s:
        reply = await call.read()
        if reply is grpc.aio.EOF:
            break
        received += len(reply.data)
    return LineSpeed(rate(sent, turned - began), rate(received, stopwatch() - turned))


def rate(size_bytes: int, seconds: float) -> float:
    """Bytes per second, also where a clock is too coarse for a line so fast."""
    return size_bytes / max(seconds, 1e-3)
