"""Reads the machine: what the limits ask for, and nothing else, so that nobody pays for what is not asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from peer.guest.activity import Activity, read_cpu_times
from peer.guest.cloud import Cloud
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
        self._activity = Activity(partial(read_cpu_times, clock), read_property)
        self._began_at = clock()

    def read(self) -> Readings:
        """Everything as it is now; it starts programs that may take a second, so call it from a thread."""
        elapsed_s, taken_back = self._clock() - self._began_at, self._cloud.takes_back()
        if not self._limits.polite:
            return Readings(elapsed_s=elapsed_s, taken_back=taken_back)
        return Readings(
            elapsed_s=elapsed_s,
            taken_back=taken_back,
            on_battery=on_battery(self._supplies),
            metered=is_metered(self._read_property),
            in_use=self._activity.in_use(),
        )
