"""Stage `bandwidth`: how fast the line between this machine and the coordinator is, measured, both ways."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from auth.errors import ManyhandsError, UnreachableError
from peer.doctor.context import Context
from peer.doctor.findings import Outcome, ok, skipped, warning
from peer.protocol import MAX_PROBE_BYTES, PROBE_CHUNK_BYTES, control_pb2
from peer.protocol.errors import error_from_rpc

SLOW_BYTES_PER_SECOND = 250_000.0  # 2 Mbit/s: ALBERT-large's gradients take more than two minutes
LIMIT_FACTOR = 6  # of the time for one direction: the call's own deadline


@dataclass(frozen=True)
class LineSpeed:
    """Bytes per second between this machine and the coordinator."""

    up: float
    down: float


async def check_bandwidth(context: Context) -> Outcome:
    """Some MiB up and down, measured against the coordinator."""
    assert context.client is not None
    limit_s = context.timing.probe_s
    call = context.client.open_probe(timeout_s=LIMIT_FACTOR * limit_s)
    try:
        speed = await measure_line(call, limit_s, context.stopwatch)
    except grpc.aio.AioRpcError as error:
        return skipped(str(error_from_rpc(error)))
    except ManyhandsError as error:
        return skipped(str(error))
    finally:
        call.cancel()
    return judge_line(speed)


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


def judge_line(speed: LineSpeed) -> Outcome:
    """What these speeds mean for averaging."""
    found = f"{_megabits(speed.up)} Mbit/s up, {_megabits(speed.down)} Mbit/s down, measured with the coordinator."
    data = {"up_bytes_per_second": round(speed.up), "down_bytes_per_second": round(speed.down)}
    if min(speed.up, speed.down) < SLOW_BYTES_PER_SECOND:
        remedy = "Others will wait for this line at each averaging: use a cable or a faster connection if you can."
        return warning(found, remedy, **data)
    return ok(found, **data)


def _megabits(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e6:,.1f}"
