"""The watch over a machine: reads it every few seconds, and tells the agent what it read and what follows from that.

It reads the machine's energy, and what the limits ask for; nobody pays for what is not asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from peer.limits.cloud import Cloud
from peer.limits.energy import EnergyMeter
from peer.limits.limits import Limits
from peer.limits.policy import Decision, Readings, decide
from peer.limits.power import SUPPLIES, Activity, Property, is_metered, on_battery, read_cpu_times, read_property
from peer.limits.usage import CACHE_FOLDER, DATA_FOLDER, clean_cache, disk_use

POLL_S = 5.0


async def watch(
    limits: Limits,
    read: Callable[[], Readings],
    now: Callable[[], datetime],
    tell: Callable[[Readings | Decision], None],
    poll_s: float = POLL_S,
) -> None:
    """Look at the machine until cancelled; tell each look's readings, and the decision where it is a new one."""
    decision: Decision | None = None
    while True:
        readings = await asyncio.to_thread(read)
        tell(readings)
        before, decision = decision, decide(now(), limits, readings)
        if decision != before:
            tell(decision)
        await asyncio.sleep(poll_s)


def local_time(now: float) -> datetime:
    """Unix seconds as aware time on the clock on the wall here."""
    return datetime.fromtimestamp(now).astimezone()


class Machine:
    """This machine, as one stay sees it."""

    def __init__(
        self,
        limits: Limits,
        cloud: Cloud,
        state_dir: Path,
        clock: Callable[[], float],
        *,
        supplies: Path = SUPPLIES,
        read_property: Property = read_property,
    ) -> None:
        self._limits, self._cloud, self._clock, self._supplies, self._read_property = (
            limits,
            cloud,
            clock,
            supplies,
            read_property,
        )
        self._state_dir = state_dir
        self._meter = EnergyMeter(clock)
        self._activity = Activity(partial(read_cpu_times, clock), read_property)
        self._began_at = clock()

    def read(self) -> Readings:
        """Everything as it is now; it starts programs that may take a second, so call it from a thread."""
        elapsed_s, taken_back = self._clock() - self._began_at, self._cloud.takes_back()
        readings = Readings(
            elapsed_s=elapsed_s, taken_back=taken_back, disk_bytes=self._read_disk(), energy=self._meter.read()
        )
        if not self._limits.polite:
            return readings
        return replace(
            readings,
            on_battery=on_battery(self._supplies),
            metered=is_metered(self._read_property),
            in_use=self._activity.in_use(),
        )

    def _read_disk(self) -> int:
        """Return the bytes of this device's files, after cleaning the cache if above the limit; 0 without a limit."""
        limit = self._limits.disk_bytes
        if limit is None:
            return 0
        cache = self._state_dir / DATA_FOLDER / CACHE_FOLDER
        used = disk_use(self._state_dir)
        if used <= limit:
            return used
        cached = disk_use(cache)
        return used - cached + clean_cache(cache, max(0, cached - (used - limit)), time.time())
