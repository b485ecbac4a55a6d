"""Stand-ins for the main functions of service, keeper and validator, each run in a really spawned process."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import text

from auth.errors import PortTakenError
from coordinator.backup.database import sqlite_address
from coordinator.store.engine import open_engine

FOREVER_S = 3600.0
FORK_FILE = "fork.pid"


def runs(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    """Says that it is ready, and stays until SIGTERM."""
    ready()
    time.sleep(FOREVER_S)


def fails(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    """Cannot start, for a reason that a person can mend."""
    raise PortTakenError("Port 7443 is taken.")


def crashes(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    """Fails as no one foresaw, while a thread and a process of its own go on, as hivemind's do."""
    ready()
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,)).start()
    raise KeyError("a peer that nobody knows")


def reads_its_database(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    """Asks a database that may be damaged."""
    engine = open_engine(sqlite_address(directory / "manyhands.db"))
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))


def complains(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    """Warns, loses a thread, and then fails as no one foresaw."""
    warnings.warn("this grows old", stacklevel=1)
    thread = threading.Thread(target=int, args=("a thread's mistake",))
    thread.start()
    thread.join()
    raise KeyError("a peer that nobody knows")


def forks(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    """Forks a process that holds all its pipes, as hivemind does, and stays."""
    pid = os.fork()
    if pid:
        (directory / FORK_FILE).write_text(str(pid))
        ready()
    time.sleep(FOREVER_S)
