"""A helper: a spawned process that answers the doctor's questions with libraries that the doctor itself must not load.

hivemind and PyTorch live there, gRPC here. What the helper prints goes to a log; it may hang or die, and is always
ended with all that it started.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from peer.doctor.questions import Answer, Question
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
END_GRACE_S = 2.0  # a process that ends by itself leaves nothing behind; one that hangs is not waited for
MAX_LOG_BYTES = 1_000_000
LAST_WORDS = 1  # lines of the log that explain why a helper has died
HelperMain = Callable[[Connection, int, Path], None]


class HelperError(Exception):
    """The helper hangs or has died; `str(error)` says which, in one sentence."""

    def __init__(self, text: str, died: bool) -> None:
        super().__init__(text)
        self.died = died


class Helper:
    """One helper; started with the first question, ended by `end`."""

    def __init__(self, main: HelperMain) -> None:
        self._main = main
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._folder: TemporaryDirectory[str] | None = None

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """The answer; raises `HelperError`, after which the next question starts a new helper."""
        process, pipe, log = self._started()
        pipe.send(question)
        assert process.pid is not None
        answered = await asyncio.to_thread(_wait, pipe, process.pid, timeout_s)
        if answered:
            try:
                answer: Answer = pipe.recv()
            except (EOFError, OSError):
                pass  # it ended without a word
            else:
                return answer
        died = answered or has_ended(process.pid)
        words = " ".join(last_lines(log, LAST_WORDS)) or "it left no word"
        await self.end()
        ending = "died" if died else f"did not answer within {timeout_s:.0f} s"
        raise HelperError(f"The doctor's helper {ending} ({words}).", died)

    async def end(self) -> None:
        """Let an idle helper go, then kill what is left of it and of all that it started."""
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.pid is not None
        if self._pipe is not None:
            self._pipe.close()
        _wait_for_end(self._process.pid, END_GRACE_S)
        end_group(self._process.pid)  # before it is reaped: until then its id is nobody else's
        self._process.kill()
        self._process.join()
        self._process.close()
        self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    def _started(self) -> tuple[BaseProcess, Connection, Path]:
        if self._process is None or self._pipe is None or self._folder is None:
            self._folder = TemporaryDirectory(prefix="manyhands-doctor-")
            prepare_children(os.environ)
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            arguments = (theirs, os.getpid(), self._log())
            self._process = context.Process(target=self._main, args=arguments, name="doctor's helper")
            self._process.start()
            theirs.close()
        return self._process, self._pipe, self._log()

    def _log(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "helper.log"


def begin_helper(parent_pid: int, log: Path) -> None:
    """The first thing in the helper's process, before imports that take long or fail."""
    name_process("helper of the doctor")
    lead_own_group()
    die_with_parent(parent_pid)
    write_output_to(log, MAX_LOG_BYTES)


def answer_questions(pipe: Connection, answer: Callable[[Question], Answer]) -> None:
    """Answer until the doctor is gone."""
    while True:
        try:
            question = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(answer(question))


def swarm_helper_main(pipe: Connection, parent_pid: int, log: Path) -> None:
    """The helper with hivemind."""
    begin_helper(parent_pid, log)
    from peer.doctor.swarm_helper import answer

    answer_questions(pipe, answer)


def training_helper_main(pipe: Connection, parent_pid: int, log: Path) -> None:
    """The helper with PyTorch."""
    begin_helper(parent_pid, log)
    from peer.doctor.training_helper import answer

    answer_questions(pipe, answer)


def _wait_for_end(pid: int, timeout_s: float) -> None:
    for _ in range(round(timeout_s / POLL_S)):
        if has_ended(pid):
            return
        time.sleep(POLL_S)


def _wait(pipe: Connection, pid: int, timeout_s: float) -> bool:
    """Return whether an answer has come; false at the timeout or if the process ended without one."""
    for _ in range(max(1, round(timeout_s / POLL_S))):
        if pipe.poll(POLL_S):
            return True
        if has_ended(pid):
            return pipe.poll(0)
    return False
