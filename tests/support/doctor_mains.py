"""Helpers of the doctor's that are not as they should be: each function prepares a really spawned process."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

ROOM_BYTES = 300 << 20  # beyond what the libraries take


def echo(word: str) -> tuple[str, int]:
    """Answer with the word and the process id."""
    return word, os.getpid()


def prints(word: str) -> None:
    """Answer nothing, and leave the word in the log."""
    sys.stderr.write(f"{word}\n")
    sys.stderr.flush()


def dies(_: Path) -> None:
    """As a process does whose libraries cannot be loaded."""
    sys.stderr.write("Traceback ...\nImportError: libcudart.so.12 is missing\n")
    sys.stderr.flush()
    os._exit(1)


def hangs(_: Path) -> None:
    """Never answers."""
    time.sleep(3600)


def has_little_memory(_: Path) -> None:
    """A machine that gives a little more than the training's libraries take."""
    import peer.doctor.training_helper  # noqa: F401

    size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + ROOM_BYTES, size_bytes + ROOM_BYTES))


def daemon_fails(folder: Path) -> None:
    """A p2p daemon that says why it cannot start."""
    _use_daemon(b"#!/bin/sh\necho 'go: cannot allocate a thread'\necho 'p2pd: giving up' >&2\nexit 3\n", folder)


def daemon_hangs(folder: Path) -> None:
    """A daemon that neither starts nor ends when told to."""
    _use_daemon(b"#!/bin/sh\ntrap '' TERM\necho 'waiting for a lock'\nsleep 3600 &\nwait\nwait\n", folder)


def daemon_is_for_another_machine(folder: Path) -> None:
    """A daemon that this processor cannot run."""
    _use_daemon(b"\x7fELF nonsense", folder)


def _use_daemon(content: bytes, folder: Path) -> None:
    from auth.swarm.hivemind_patches import DAEMON, DAEMON_VARIABLE

    program = folder / DAEMON
    program.write_bytes(content)
    program.chmod(0o700)
    os.environ[DAEMON_VARIABLE] = str(program)
