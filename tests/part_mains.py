"""Stand-ins for the main functions of service and keeper, each run in a really spawned process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from auth.errors import PortTakenError

FOREVER_S = 600.0
FORK_FILE = "fork.pid"


def runs(directory: Path, parent_pid: int, ready: Callable[[], None]) -> None:
    """Says that it is ready, and stays until SIGTERM."""
    ready()
    time.sleep(FOREVER_S)


def fails(directory: Path, parent_pid: int, ready: Callable[[], None]) -> None:
    """Cannot start, for a reason that a person can mend."""
    raise PortTakenError("Port 7443 is taken.")


def forks(directory: Path, parent_pid: int, ready: Callable[[], None]) -> None:
    """Forks a process that holds all its pipes, as hivemind does, and stays."""
    pid = os.fork()
    if pid:
        (directory / FORK_FILE).write_text(str(pid))
        ready()
    time.sleep(FOREVER_S)
