"""Helpers of the doctor's that are not as they should be, each run in a really spawned process."""

from __future__ import annotations

import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from peer.doctor.helper import answer_questions, begin_helper
from peer.doctor.questions import Answer, DetectedDevice, Look, Question

ROOM_BYTES = 300 << 20  # beyond what the libraries take


def echoes(pipe: Connection, parent_pid: int, log: Path) -> None:
    """Answers with its process id and the device that it was asked for."""
    begin_helper(parent_pid, log)

    def answer(question: Question) -> Answer:
        assert isinstance(question, Look)
        return DetectedDevice(name=question.device, threads=os.getpid())

    answer_questions(pipe, answer)


def dies(_pipe: Connection, parent_pid: int, log: Path) -> None:
    """As a process does whose libraries cannot be loaded."""
    begin_helper(parent_pid, log)
    sys.stderr.write("Traceback ...\nImportError: libcudart.so.12 is missing\n")
    sys.stderr.flush()
    os._exit(1)


def dies_at_the_question(pipe: Connection, parent_pid: int, log: Path) -> None:
    """As a process does that the kernel kills for its memory."""
    begin_helper(parent_pid, log)
    pipe.recv()
    os._exit(137)


def hangs(_pipe: Connection, parent_pid: int, log: Path) -> None:
    """Never answers."""
    begin_helper(parent_pid, log)
    time.sleep(3600)


def has_little_memory(pipe: Connection, parent_pid: int, log: Path) -> None:
    """The real helper for training, on a machine that gives it a little more than its libraries take."""
    begin_helper(parent_pid, log)
    from peer.doctor.training_helper import answer

    size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + ROOM_BYTES, size_bytes + ROOM_BYTES))
    answer_questions(pipe, answer)


def daemon_fails(pipe: Connection, parent_pid: int, log: Path) -> None:
    """The real helper for the swarm, with a p2p daemon that says why it cannot start."""
    _with_daemon("echo 'go: cannot allocate a thread'\necho 'p2pd: giving up' >&2\nexit 3\n", pipe, parent_pid, log)


def daemon_hangs(pipe: Connection, parent_pid: int, log: Path) -> None:
    """The same with a daemon that neither starts nor ends when told to."""
    _with_daemon("trap '' TERM\necho 'waiting for a lock'\nsleep 3600 &\nwait\nwait\n", pipe, parent_pid, log)


def daemon_is_for_another_machine(pipe: Connection, parent_pid: int, log: Path) -> None:
    """The same with a daemon that this processor cannot run."""
    _with_daemon(None, pipe, parent_pid, log)


def _with_daemon(script: str | None, pipe: Connection, parent_pid: int, log: Path) -> None:
    begin_helper(parent_pid, log)
    from auth.swarm.hivemind_patches import DAEMON, DAEMON_VARIABLE
    from peer.doctor.swarm_helper import answer

    program = log.with_name(DAEMON)
    program.write_bytes(b"\x7fELF nonsense" if script is None else f"#!/bin/sh\n{script}".encode())
    program.chmod(0o700)
    os.environ[DAEMON_VARIABLE] = str(program)
    answer_questions(pipe, answer)
