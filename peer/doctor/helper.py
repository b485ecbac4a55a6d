"""The doctor's helper: a process for libraries that the doctor itself must not load.

The helper loads hivemind and PyTorch, which must not share a process with the doctor's gRPC. Its
output goes to a log. The helper's process group is always killed, even if the helper hangs or dies.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any

from peer.runtime.processes import (
    die_with_parent,
    end_group,
    has_ended,
    last_lines,
    lead_own_group,
    name_process,
    prepare_children,
    write_output_to,
)

POLL_S = 0.1
END_GRACE_S = 2.0  # time for the helper to clean up and exit before it is killed
MAX_LOG_BYTES = 1_000_000
LAST_WORDS = 1  # number of log lines to quote if the helper died
LOG = "helper.log"


class HelperError(Exception):
    """The error raised if the helper hangs or dies; `died` distinguishes the two."""

    def __init__(self, text: str, died: bool) -> None:
        super().__init__(text)
        self.died = died


def as_it_is(_folder: Path) -> None:
    """Do nothing: the default for `prepare` in `Helper`."""


@dataclass(frozen=True)
class _Running:
    process: BaseProcess
    pid: int
    pipe: Connection
    folder: TemporaryDirectory[str]


class Helper:
    """A helper process, started by the first `ask` and stopped by `end`.

    The process first calls `prepare` with the folder that contains its log.
    """

    def __init__(self, timeout_s: float, prepare: Callable[[Path], None] = as_it_is) -> None:
        self._timeout_s = timeout_s
        self._prepare = prepare
        self._running: _Running | None = None

    async def ask(self, question: str, *arguments: object) -> Any:
        """Call a function (`module:name`) in the helper and return its result.

        Raises `HelperError` if the helper dies or hangs; the next call starts a new helper.
        """
        running = self._running = self._running or self._start()
        log = Path(running.folder.name) / LOG
        known_bytes = log.stat().st_size if log.exists() else 0  # skip the output of earlier calls
        running.pipe.send((question, arguments))
        answered = await asyncio.to_thread(_wait, running, self._timeout_s)
        if answered:
            try:
                return running.pipe.recv()
            except (EOFError, OSError):
                pass  # the helper ended without an answer
        died = answered or has_ended(running.pid)
        words = " ".join(last_lines(log, LAST_WORDS, after_bytes=known_bytes)) or "it printed nothing"
        await self.end()
        ending = "died" if died else f"did not answer within {self._timeout_s:.0f} s"
        raise HelperError(f"The doctor's helper {ending} ({words}).", died)

    async def end(self) -> None:
        """Give the helper time to exit, then kill its remaining process group."""
        running, self._running = self._running, None
        if running is not None:
            await asyncio.to_thread(_end, running)

    def _start(self) -> _Running:
        folder = TemporaryDirectory(prefix="manyhands-doctor-")
        prepare_children(os.environ)
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        arguments = (theirs, os.getpid(), Path(folder.name), self._prepare)
        process = context.Process(target=_answer_questions, args=arguments, name="doctor's helper")
        process.start()
        theirs.close()
        assert process.pid is not None
        return _Running(process, process.pid, pipe, folder)


def _answer_questions(pipe: Connection, parent_pid: int, folder: Path, prepare: Callable[[Path], None]) -> None:
    """Run the helper: call the requested functions until the doctor closes the pipe."""
    name_process("helper of the doctor")
    lead_own_group()
    die_with_parent(parent_pid)
    write_output_to(folder / LOG, MAX_LOG_BYTES)  # start the log before any import, because an import may hang or fail
    prepare(folder)
    while True:
        try:
            question, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(resolve_name(question)(*arguments))


def _end(running: _Running) -> None:
    running.pipe.close()
    for _ in range(round(END_GRACE_S / POLL_S)):
        if has_ended(running.pid):
            break
        time.sleep(POLL_S)
    end_group(running.pid)  # the process is not reaped yet, so its id cannot have been reused
    running.process.kill()
    running.process.join()
    running.process.close()
    running.folder.cleanup()


def _wait(running: _Running, timeout_s: float) -> bool:
    """Wait for an answer; return False if the process ends without one or the timeout expires."""
    for _ in range(max(1, round(timeout_s / POLL_S))):
        if running.pipe.poll(POLL_S):
            return True
        if has_ended(running.pid):
            return running.pipe.poll(0)
    return False
