"""The machine monitor, which sends readings to the agent regularly, and decisions when they change.

Besides energy use, only values needed for the limits are read. For `--polite`, these are battery
power (from the kernel), metered networks (from NetworkManager), a person at the keyboard (from
systemd's login manager), and other busy programs. `busctl` reads the services' properties.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from peer.limits.cloud import Cloud
from peer.limits.energy_meter import EnergyMeter
from peer.limits.limits import Limits
from peer.limits.policy import Decision, Readings, decide
from peer.limits.usage import CACHE_FOLDER, DATA_FOLDER, clean_cache, disk_use

POLL_S = 5.0
TIMEOUT_S = 5.0  # timeout of a `busctl` call
Property = Callable[[str, str, str, str], str | None]  # reads (service, object, interface, name)
LOGIND = "org.freedesktop.login1"
BUSY_SHARE = 0.25  # other programs are busy if they use more than this fraction of all cores over `WINDOW_S`
WINDOW_S = 30.0
QUIET_S = 120.0  # other programs count as busy until idle for this time
NETWORK_MANAGER = "org.freedesktop.NetworkManager"
YES, NO, GUESS_YES, GUESS_NO = "1", "2", "3", "4"  # values of `NMMetered`; 0 means unknown
SUPPLIES = Path("/sys/class/power_supply")
BATTERIES = frozenset({"Battery", "UPS"})


async def watch(
    limits: Limits,
    read: Callable[[], Readings],
    clock: Callable[[], float],
    tell: Callable[[Readings | Decision], None],
    poll_s: float = POLL_S,
) -> None:
    """Read the machine's state until cancelled; send all readings, and decisions that changed."""
    decision: Decision | None = None
    while True:
        readings = await asyncio.to_thread(read)
        tell(readings)
        before, decision = decision, decide(datetime.fromtimestamp(clock()).astimezone(), limits, readings)
        if decision != before:
            tell(decision)
        await asyncio.sleep(poll_s)


def on_battery(supplies: Path = SUPPLIES) -> bool | None:
    """Return whether the machine (not a peripheral) runs on battery, or None if unknown."""
    if not supplies.is_dir():
        return None
    found = [supply for supply in sorted(supplies.iterdir()) if _word(supply, "scope") != "Device"]
    if any(_word(supply, "online") == "1" for supply in found if _word(supply, "type") not in BATTERIES):
        return False
    return any(_word(supply, "status") == "Discharging" for supply in found if _word(supply, "type") in BATTERIES)


def _word(supply: Path, name: str) -> str:
    try:
        return (supply / name).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def read_property(service: str, path: str, interface: str, name: str, command: str = "busctl") -> str | None:
    """Return a property as printed by `busctl`, without its type, or None if it cannot be read."""
    arguments = [command, "--system", "get-property", service, path, interface, name]
    try:
        found = subprocess.run(arguments, capture_output=True, timeout=TIMEOUT_S, check=True, text=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    kind, _, value = found.stdout.strip().partition(" ")
    return value if kind else None


def is_metered(read: Property = read_property) -> bool | None:
    """Return whether NetworkManager considers the network metered, or None if unknown."""
    answer = read(NETWORK_MANAGER, "/org/freedesktop/NetworkManager", NETWORK_MANAGER, "Metered")
    return {YES: True, GUESS_YES: True, NO: False, GUESS_NO: False}.get(answer or "")


class Activity:
    """A detector of a person at the keyboard or of other programs that are busy."""

    def __init__(self, cpu_times: Callable[[], CpuTimes], read: Property = read_property) -> None:
        self._cpu_times, self._read = cpu_times, read
        self._programs = OtherPrograms(os.cpu_count() or 1)

    def in_use(self) -> bool | None:
        """Return whether a person or program uses the machine, or None if unknown."""
        programs, person = self._programs.busy(self._cpu_times()), person_present(self._read)
        return programs or person


def person_present(read: Property = read_property) -> bool | None:
    """Return whether any login session is active; None if systemd's login manager is unavailable.

    A terminal is idle after five minutes without input, a desktop when it reports idle. Without a
    login, the result is False.
    """
    idle = read(LOGIND, "/org/freedesktop/login1", f"{LOGIND}.Manager", "IdleHint")
    return {"true": False, "false": True}.get(idle or "")


class OtherPrograms:
    """A detector of other programs that were busy within the last `QUIET_S` seconds."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._seen: deque[CpuTimes] = deque()
        self._busy_at = float("-inf")

    def busy(self, times: CpuTimes) -> bool:
        """Record the times and return whether other programs are busy; False in the first `WINDOW_S`."""
        while len(self._seen) > 1 and self._seen[1].at <= times.at - WINDOW_S:
            self._seen.popleft()
        self._seen.append(times)
        first = self._seen[0]
        if times.at - first.at >= WINDOW_S and others_share(first, times, self._cores) >= BUSY_SHARE:
            self._busy_at = times.at
        return times.at < self._busy_at + QUIET_S


@dataclass(frozen=True)
class CpuTimes:
    """The cumulative processor time at one moment, in seconds."""

    at: float  # seconds on a monotonic clock
    machine_s: float  # time used by all processes on all cores
    own_s: dict[int, float]  # time used by our own processes, by process id


def read_cpu_times(clock: Callable[[], float]) -> CpuTimes:
    """Read the processor times of the machine, and of this process and its descendants."""
    times = psutil.cpu_times()
    busy_s = times.user + times.system + getattr(times, "nice", 0.0)
    own = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            used = process.cpu_times()
            own[process.pid] = used.user + used.system
    return CpuTimes(clock(), busy_s, own)


def others_share(before: CpuTimes, after: CpuTimes, cores: int) -> float:
    """Return the fraction of all cores used by other programs between two readings."""
    own_s = sum(used - before.own_s.get(pid, 0.0) for pid, used in after.own_s.items())
    return max(0.0, after.machine_s - before.machine_s - own_s) / (max(1e-9, after.at - before.at) * cores)


class Machine:
    """A reader of the machine's state, and of the time since the reader's creation."""

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
        """Return the current readings; call in a thread, because programs may run for a second."""
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
        """Trim the cache to the disk limit; return the bytes still used, or 0 without a limit."""
        limit = self._limits.disk_bytes
        if limit is None:
            return 0
        cache = self._state_dir / DATA_FOLDER / CACHE_FOLDER
        used = disk_use(self._state_dir)
        if used <= limit:
            return used
        cached = disk_use(cache)
        return used - cached + clean_cache(cache, max(0, cached - (used - limit)), time.time())
