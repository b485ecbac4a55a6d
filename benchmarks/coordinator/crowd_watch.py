"""Watches over a connected crowd: dashboards, a small call, the age of the database's word on devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from coordinator.context.open_run import OpenRun
from coordinator.ledger.presence import write_swarm_status
from coordinator.store.models import DeviceSession
from peer.control.client import ControlClient

CALL_EVERY_S = 0.25
LOOK_EVERY_S = 1.0
LONGEST_LINE_BYTES = 2**26


@dataclass
class Watched:
    """The watches' observations; times in seconds."""

    calls_s: list[float] = field(default_factory=list)  # how long a challenge took
    ages_s: list[float] = field(default_factory=list)  # of devices' last words in the database
    events: int = 0  # that dashboards have got
    event_bytes: int = 0
    gaps_s: list[float] = field(default_factory=list)  # between two events of one dashboard


async def call_again_and_again(run: OpenRun, watched: Watched) -> None:
    """A call that needs no database, as anybody may make it."""
    client = await ControlClient.connect(run.directory.join_link, time.time)
    try:
        while True:
            began = time.perf_counter()
            await client.greet()
            watched.calls_s.append(time.perf_counter() - began)
            await asyncio.sleep(CALL_EVERY_S)
    finally:
        await client.close()


async def look_for_ages(run: OpenRun, watched: Watched) -> None:
    """How long ago each open session was heard of, by the database."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        watched.ages_s += await asyncio.to_thread(_ages, run)


def _ages(run: OpenRun) -> Sequence[float]:
    with run.database() as session:
        seen = session.scalars(select(DeviceSession.last_seen_at).where(DeviceSession.ended_at.is_(None))).all()
    now = time.time()
    return [now - at for at in seen]


async def keep(run: OpenRun, every_s: float, began: float, peers: int) -> None:
    """Write what a keeper writes each second."""
    while True:
        step = max(0, int((time.perf_counter() - began) / every_s))
        await asyncio.to_thread(
            write_swarm_status,
            run.database,
            step=step,
            samples_accumulated=0,
            target_batch_size=run.directory.config.averaging.target_batch_size,
            peers=peers,
            samples_per_second=1.0,
            eta_s=None,
            addresses=(),
            now=time.time(),
        )
        await asyncio.sleep(LOOK_EVERY_S)


async def look_at_dashboard(host: str, port: int, number: int, watched: Watched) -> None:
    """One page's stream of events, from an address of its own (the service trusts a proxy on this machine)."""
    reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE_BYTES)
    address = f"10.0.{number // 250}.{1 + number % 250}"
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\nX-Forwarded-For: {address}\r\n\r\n"
    writer.write(request.encode())
    last: float | None = None
    try:
        while line := await reader.readline():  # a long event is in several pieces, each with its length before it
            watched.event_bytes += len(line)
            if line.startswith(b"event:"):
                now = time.perf_counter()
                watched.events += 1
                watched.gaps_s += [] if last is None else [now - last]
                last = now
    finally:
        writer.close()
