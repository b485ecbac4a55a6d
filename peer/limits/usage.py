"""Resources used by all workers since joining: traffic, energy, memory and disk.

Above the disk limit, the cache is trimmed. Memory is measured for the worker's process group, with
shared pages counted once. The system's out-of-memory kills are counted, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from auth.errors import ConfigError
from peer.limits.energy_meter import NOT_KNOWN, Energy
from peer.limits.events import Used
from peer.limits.limits import Limits
from peer.limits.policy import Readings
from peer.network.traffic import Throttle
from peer.reporting.messages import Transferred

DATA_FOLDER = "data"  # name of the folder in the device's state directory
CACHE_FOLDER = "cache"  # name of the folder in the data folder; its files may be deleted
IN_USE_S = 600.0  # files used within this time are not deleted
# Environment variables for the libraries' cache folders. Login files are unaffected.
CACHES = {"HF_HUB_CACHE": "hub", "HF_XET_CACHE": "xet", "HF_DATASETS_CACHE": "datasets", "HF_ASSETS_CACHE": "assets"}
LIBRARIES_BYTES = 500_000_000  # memory of PyTorch and hivemind without a model
PARAMETER_COPIES = 3  # copies of each parameter: value, gradient, and a copy of the gradient for averaging
VALUE_BYTES = 4
NOTHING = Transferred(0, 0)


class UsageMeter:
    """A meter of all traffic, and of the energy used by the machine while workers run."""

    def __init__(self, limits: Limits) -> None:
        self.fetching = Throttle(limits.download_rate)  # limits and counts the agent's own downloads
        self._limits = limits
        self._group: int | None = None  # the running worker's process group, if any
        self._ended, self._running = NOTHING, NOTHING  # traffic of ended workers and of the running one
        self._meter, self._energy = NOT_KNOWN, NOT_KNOWN  # last meter reading; energy used while workers were running

    def worker_started(self, group: int) -> None:
        """Start counting the machine's energy and measuring this process group's memory."""
        self._group = group

    def take(self, transferred: Transferred) -> None:
        """Update the running worker's total traffic."""
        self._running = transferred

    def worker_ended(self) -> None:
        """Add the worker's traffic to the total; the next worker starts from zero."""
        ended, last = self._ended, self._running
        self._ended = Transferred(ended.sent_bytes + last.sent_bytes, ended.received_bytes + last.received_bytes)
        self._running, self._group = NOTHING, None

    def on(self, readings: Readings) -> Readings:
        """Return the readings with the usage added; measure memory only if it is limited."""
        self._count(readings.energy)
        watched = self._group if self._limits.memory_bytes is not None else None
        return replace(
            readings,
            sent_bytes=self._ended.sent_bytes + self._running.sent_bytes,
            received_bytes=self._ended.received_bytes + self._running.received_bytes + self.fetching.total_bytes,
            memory_bytes=group_memory(watched) if watched is not None else 0,
            energy=self._energy,
        )

    def _count(self, meter: Energy) -> None:
        before, self._meter = self._meter, meter
        working = self._group is not None
        self._energy = Energy(
            _added(self._energy.processor_wh, before.processor_wh, meter.processor_wh, working),
            _added(self._energy.gpu_wh, before.gpu_wh, meter.gpu_wh, working),
        )


def _added(counted: float | None, before: float | None, now: float | None, working: bool) -> float | None:
    """Return `counted` plus the energy between two meter values, if a worker is running."""
    if now is None:
        return counted
    used = now - before if working and before is not None else 0.0
    return (counted or 0.0) + used


def used_of(readings: Readings, *, at_end: bool = False) -> Used:
    """Return the event that shows the traffic and energy in the readings."""
    energy = readings.energy
    return Used(readings.sent_bytes, readings.received_bytes, energy.processor_wh, energy.gpu_wh, at_end=at_end)


def cache_within(data_dir: Path, environment: MutableMapping[str, str]) -> None:
    """Set the libraries' cache folders to this device's folder; call before importing the libraries."""
    for variable, folder in CACHES.items():
        environment.setdefault(variable, str(data_dir / CACHE_FOLDER / folder))


def disk_use(folder: Path) -> int:
    """Return the disk space used by files below a folder, in bytes."""
    return sum(size for _, _, size in _files(folder))


def clean_cache(folder: Path, keep_bytes: int, now: float) -> int:
    """Delete the least recently used files below `folder` until `keep_bytes` remain.

    Returns the remaining bytes, which may exceed `keep_bytes` because files in use are not deleted.
    """
    found = sorted(_files(folder))
    left = sum(size for _, _, size in found)
    for used_at, path, size in found:
        if left <= keep_bytes or used_at > now - IN_USE_S:
            break
        with suppress(OSError):
            Path(path).unlink()
            left -= size
    return left


def _files(folder: Path) -> Iterator[tuple[float, str, int]]:
    """Yield (time of last use, path, size in bytes) for each file that is not a link."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118  # faster for many files
            with suppress(OSError):
                status = os.lstat(path)
                if not os.path.islink(path):  # noqa: PTH114
                    yield max(status.st_mtime, status.st_atime), path, status.st_blocks * 512


def require_memory(limit_bytes: int | None, parameters: int, moments: int) -> None:
    """Raise `ConfigError` if the limit is too low for this model at any microbatch size.

    `moments` is the number of values in the optimizer's state.
    """
    least = LIBRARIES_BYTES + VALUE_BYTES * (PARAMETER_COPIES * parameters + moments)
    if limit_bytes is not None and limit_bytes < least:
        raise ConfigError(
            f"`--max-memory` ({limit_bytes / 1e9:,.3g} GB) is too little for this run: its model of "
            f"{parameters / 1e6:,.1f} million parameters needs {least / 1e9:,.2f} GB at the very least. Allow more, or "
            "help a run with a smaller model."
        )


def kills_for_memory(statistics: Path = Path("/proc/vmstat")) -> int | None:
    """Return the system's number of out-of-memory kills, or None if unknown."""
    with suppress(OSError, ValueError):
        for line in statistics.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def group_memory(group: int) -> int:
    """Return a process group's memory in bytes; ignore processes that have just ended."""
    return sum(_memory(process) for process in psutil.process_iter() if _group_of(process) == group)


def _group_of(process: psutil.Process) -> int | None:
    with suppress(OSError):
        return os.getpgid(process.pid)
    return None


def _memory(process: psutil.Process) -> int:
    """Return a process's proportional set size in bytes, or the resident set size if access is denied."""
    with suppress(psutil.NoSuchProcess):
        try:
            memory = process.memory_full_info()  # the forked swarm node shares most pages
            return int(getattr(memory, "pss", memory.uss))
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    return 0
