"""A run's service in a separate process, started by the coordinator's command without a keeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from coordinator.run.directory import RunDirectory
from tests.support.commands import Command, service_of
from tests.support.waiting import wait_until


@contextmanager
def served(run: RunDirectory, log: Path) -> Iterator[psutil.Process]:
    """Serve a run until the context exits; yield the process that listens on the web port, the last port to open."""
    command = Command(log, "coordinator", "serve", str(run.path), "--service-only")
    found: list[psutil.Process] = []

    def listens() -> bool:
        try:
            found.append(service_of(command, run.settings.web_port))
        except AssertionError:
            return False
        return True

    try:
        wait_until("the service listens", listens, log, poll_s=0.2)
        yield found[0]
    finally:
        command.terminate()
