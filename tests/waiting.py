"""Waiting for what other processes do; fails when it does not happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psutil

TIMEOUT_S = 180.0  # a passing test never waits so long; a busy machine may
POLL_S = 0.02


def wait_until(true: Callable[[], object], timeout_s: float = TIMEOUT_S, poll_s: float = POLL_S) -> None:
    """Return as soon as it is true."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(poll_s)


async def eventually(true: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """The same, while other tasks go on."""

    async def poll() -> None:
        while not true():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(POLL_S)

    await asyncio.wait_for(poll(), timeout_s)


def is_gone(pid: int) -> bool:
    """Whether no process of this id runs any more (a zombie does not)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
