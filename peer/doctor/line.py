"""Stage `bandwidth`: how fast the line between this machine and the coordinator is, measured, both ways."""

from __future__ import annotations

import grpc

from auth.errors import ManyhandsError
from peer.doctor.context import Context
from peer.doctor.findings import Outcome, ok, skipped, warning
from peer.line import LineSpeed, measure_line
from peer.protocol.errors import error_from_rpc

SLOW_BYTES_PER_SECOND = 250_000.0  # 2 Mbit/s: ALBERT-large's gradients take more than two minutes
LIMIT_FACTOR = 6  # of the time for one direction: the call's own deadline


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
