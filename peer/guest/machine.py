"""Reads the machine: its energy, and what the limits ask for; nobody pays for what is not asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from peer.guest.activity import Activity, read_cpu_times
from peer.guest.cloud import Cloud
from peer.guest.disk_use import CACHE_FOLDER, DATA_FOLDER, clean_cache, disk_use
from peer.guest.energy import EnergyMeter
from peer.guest.limits import Limits
from peer.guest.metering import is_metered
from peer.guest.power_supply import SUPPLIES, on_battery
from peer.guest.readings import Readings
from peer.guest.system_bus import Property, read_property


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
        """What this device's files take, once the cache has given way to the others."""
        limit = self._limits.disk_bytes
        if limit is None:
            return 0
        cache = self._state_dir / DATA_FOLDER / CACHE_FOLDER
        used = disk_use(self._state_dir)
        if used <= limit:
            return used
        cached = disk_use(cache)
        return used - cached + clean_cache(cache, max(0, cached - (used - limit)), time.time())
