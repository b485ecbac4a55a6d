"""Numbers that the operating system tells of this machine, a container's limits included."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 60  # version 1 writes "no limit" as about 2^63


@dataclass(frozen=True)
class Memory:
    """Bytes of main memory."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Processor:
    """Logical cores."""

    cores: int  # that this process may use
    quota: float | None  # how many of them a container lets it use at once
    load: float  # how many are busy, on average over the last minute


def read_free_disk(path: Path) -> int:
    """Free bytes where `path` lies or would be made; raises `OSError` if nothing can be written there."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
    return shutil.disk_usage(existing).free


def read_memory(cgroups: Path = CGROUPS) -> Memory:
    """What the machine has, or the container if that is less."""
    machine = psutil.virtual_memory()
    limit = _first_number(cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes")
    if limit is None or limit >= min(NO_LIMIT_BYTES, machine.total):
        return Memory(machine.total, machine.available)
    used = _first_number(cgroups / "memory.current", cgroups / "memory" / "memory.usage_in_bytes") or 0
    return Memory(limit, min(machine.available, max(0, limit - used)))


def read_processor(cgroups: Path = CGROUPS) -> Processor:
    """The cores that this process may use, and how busy they are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Processor(cores, _read_quota(cgroups), psutil.getloadavg()[0])


def _read_quota(cgroups: Path) -> float | None:
    """Cores: time per period, as both versions of control groups write it."""
    try:
        share, period = (cgroups / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        share_us = _first_number(cgroups / "cpu" / "cpu.cfs_quota_us")
        period_us = _first_number(cgroups / "cpu" / "cpu.cfs_period_us")
        return share_us / period_us if share_us and period_us and share_us > 0 else None
    return None if share == "max" else int(share) / int(period)


def _first_number(*paths: Path) -> int | None:
    """The number in the first of these files that holds one."""
    for path in paths:
        try:
            return int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # missing, or "max"
            continue
    return None
