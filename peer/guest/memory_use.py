"""Main memory: how much a process group uses, each shared page counted once, and processes that the system ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

from auth.errors import ConfigError

LIBRARIES_BYTES = 500_000_000  # PyTorch and hivemind with their processes, before there is any model
PARAMETER_BYTES = 20  # itself, its gradient, that gradient to be averaged, and the optimizer's two moments, in float32


def require_memory(limit_bytes: int | None, parameters: int) -> None:
    """Raise `ConfigError` for a limit in which no worker can hold this model, however small its microbatch."""
    least = LIBRARIES_BYTES + PARAMETER_BYTES * parameters
    if limit_bytes is not None and limit_bytes < least:
        raise ConfigError(
            f"`--max-memory` ({limit_bytes / 1e9:,.3g} GB) is too little for this run: its model of "
            f"{parameters / 1e6:,.1f} million parameters needs {least / 1e9:,.2f} GB at the very least. Allow more, or "
            "help a run with a smaller model."
        )


def kills_for_memory(statistics: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes this system has killed for memory since it started, containers' among them; None: unknown."""
    with suppress(OSError, ValueError):
        for line in statistics.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def group_memory(group: int) -> int:
    """Bytes, of all processes of the group; those that have just ended use none."""
    return sum(_memory(process) for process in psutil.process_iter() if _group_of(process) == group)


def _group_of(process: psutil.Process) -> int | None:
    with suppress(OSError):
        return os.getpgid(process.pid)
    return None


def _memory(process: psutil.Process) -> int:
    """The proportional share, for hivemind's forks share most of their pages; where that is not told, all of them."""
    with suppress(psutil.NoSuchProcess):
        try:
            memory = process.memory_full_info()
            return int(getattr(memory, "pss", memory.uss))
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    return 0
