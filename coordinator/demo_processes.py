"""The demo's processes: each is a `manyhands` command of its own, just as strangers would start it.

They lead their own process groups, so that Ctrl-C reaches only the demo, which then ends them in the right order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from auth.errors import StorageError
from peer.supervision import die_with_parent, end_group

POLL_S = 0.05
TAIL_BYTES = 4096


class CommandProcess:
    """One running `manyhands` command; what it prints goes to a file."""

    def __init__(
        self, name: str, arguments: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = log_path
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603  # our own program, its arguments are ours
                    [sys.executable, "-m", "manyhands", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=log_path.parent,  # nothing there that could be imported in our modules' place
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                    preexec_fn=partial(die_with_parent, os.getpid()),  # the demo has one thread only
                )
        except OSError as error:
            raise StorageError(f"Cannot start {name} ({error.strerror}).") from error

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the command itself, which ends its own children in order."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once with its whole group."""
        if self._process.poll() is None:  # else its id may be another's by now
            end_group(self._process.pid)
            self._process.wait()

    def last_words(self) -> str:
        """The last line that it printed."""
        try:
            tail = self.log_path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def stop_in_order(processes: Sequence[CommandProcess], grace_s: float) -> list[CommandProcess]:
    """Ask all to stop, together, and wait; returns those that did not stop in time."""
    deadline = time.monotonic() + grace_s
    for process in processes:
        process.ask_to_stop()
    while any(process.exit_code() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return [process for process in processes if process.exit_code() is None]
