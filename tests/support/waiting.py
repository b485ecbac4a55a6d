"""Waiting for an event of another task, thread or process: for one length of time everywhere, which only ends hangs.

A test that passes never waits so long, however busy the machine is. The tests of the time limits of the product
set those limits instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PATIENCE_S = 600.0  # pytest's `faulthandler_timeout` is longer
POLL_S = 0.02
TAIL_CHARACTERS = 3000  # of each log


def wait_until(sentence: str, true: Callable[[], object], *logs: Path, poll_s: float = POLL_S) -> None:
    """Return once `true`, which `sentence` says in words; fail with the ends of these logs if that never happens."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(_waited(sentence, logs))
        time.sleep(poll_s)


async def eventually(sentence: str, true: Callable[[], object], *logs: Path) -> None:
    """Wait in the same way while other tasks go on."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(_waited(sentence, logs))
        await asyncio.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether no process of this id runs any more (a zombie does not)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _waited(sentence: str, logs: tuple[Path, ...]) -> str:
    ends = (f"--- {log} ends with:\n{log.read_text(errors='replace')[-TAIL_CHARACTERS:]}" for log in logs)
    return "\n".join([f"waited {PATIENCE_S:.0f} s until {sentence}", *ends])
