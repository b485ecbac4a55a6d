"""Parts of the coordinator, one process each: service, keeper, and auxiliary parts.

Parts are spawned, not forked, and lead their own process groups. A part is always killed with its
group, because the swarm node and the p2p daemon may survive a killed parent.

The supervisor keeps this module loaded while it runs. To save memory, each part imports
its libraries in its own process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from auth.errors import ManyhandsError
from coordinator.run.logs import LogStyle, log_the_unforeseen, log_to_stderr
from peer.runtime.processes import (
    die_with_parent,
    end_group,
    exit_now,
    has_ended,
    kill_forks_at_end,
    lead_own_group,
    name_process,
    stop_at_sigterm,
)

logger = logging.getLogger(__name__)
FAILED = 1  # exit code after an unexpected error
NICENESS = 10  # niceness of auxiliary parts, which get a tenth of a shared core


@dataclass(frozen=True)
class Part:
    """A process to keep running; `main` receives the run directory, parent pid and a callback.

    `main` calls the callback once the part is ready. Auxiliary parts stop after the others, and
    their failures do not end the run. An auxiliary part that exits to free its memory is restarted.
    """

    name: str
    main: Callable[[Path, int, Callable[..., None]], None]
    auxiliary: bool = False


@dataclass(frozen=True)
class Prepared:
    """The result of `coordinator.service.preparation`: the parts to start, and texts to print."""

    run: str
    parts: tuple[Part, ...]
    own_hosts: frozenset[str]  # hosts that logs may contain
    join_link: str
    dashboard: str


def _run_service(directory: Path, _parent_pid: int, ready: Callable[..., None]) -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise, the gRPC core logs each failed handshake
    from coordinator.run.directory import RunDirectory
    from coordinator.service.service import serve

    serve(RunDirectory.open(directory), ready)


def _run_keeper(directory: Path, parent_pid: int, ready: Callable[..., None]) -> None:
    from coordinator.keeper.opening import run_keeper

    run_keeper(str(directory), parent_pid, ready)


def _run_validator(directory: Path, _parent_pid: int, ready: Callable[..., None]) -> None:
    os.nice(NICENESS)
    from coordinator.checkpoints.validations import await_work
    from coordinator.run.directory import RunDirectory

    stop = stop_at_sigterm()
    ready()
    if await_work(RunDirectory.open(directory), stop):
        from coordinator.checkpoints.validator import run_validator  # imported late, because it imports torch

        run_validator(directory, stop)


def _run_answerer(directory: Path, _parent_pid: int, ready: Callable[..., None]) -> None:
    os.nice(NICENESS)
    from coordinator.playground.answerer import run_answerer  # imports torch on the first request

    ready()
    run_answerer(directory)


def _run_herald(directory: Path, _parent_pid: int, ready: Callable[..., None]) -> None:
    os.nice(NICENESS)
    from coordinator.announcements.herald import run_herald

    ready()
    run_herald(directory)


def _run_sinks(directory: Path, _parent_pid: int, ready: Callable[..., None]) -> None:
    os.nice(NICENESS)
    from coordinator.tracking.process import run_sinks  # imports the sinks' libraries

    ready()
    run_sinks(directory)


def _run_publisher(directory: Path, _parent_pid: int, ready: Callable[..., None]) -> None:
    os.nice(NICENESS)
    from coordinator.publishing.publisher import run_publisher

    ready()
    run_publisher(directory)


SERVICE = Part("service", _run_service)
KEEPER = Part("keeper", _run_keeper)
VALIDATOR = Part("validator", _run_validator, auxiliary=True)
ANSWERER = Part("answerer", _run_answerer, auxiliary=True)
HERALD = Part("herald", _run_herald, auxiliary=True)
SINKS = Part("sinks", _run_sinks, auxiliary=True)
PUBLISHER = Part("publisher", _run_publisher, auxiliary=True)


@dataclass(frozen=True)
class _Ready:
    """A message from a part's process that the part is ready, with an optional answer."""

    answer: object = None


class PartProcess:
    """The process of one part; `start` may be called again after the process has ended."""

    def __init__(self, part: Part, directory: Path, style: LogStyle = LogStyle()) -> None:  # noqa: B008  # the default is frozen
        self.part = part
        self._style = style
        self.ready = False  # whether the process has been ready since its last start
        self.answer: object = None  # sent by the process with its ready message
        self.error: ManyhandsError | None = None  # error that ended the process, if sent
        self._directory = directory
        self._process: multiprocessing.process.BaseProcess | None = None
        self._messages: Connection | None = None

    def start(self) -> None:
        """Spawn the process."""
        context = multiprocessing.get_context("spawn")
        self.ready, self.error = False, None
        self._messages, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_part_main, args=(self.part, self._directory, os.getpid(), theirs, self._style), name=self.part.name
        )
        with interrupts_ignored():  # the child must ignore Ctrl-C
            process.start()
        theirs.close()
        self._process = process

    def read(self) -> None:
        """Receive pending messages from the process."""
        while self._messages is not None and self._messages.poll():
            try:
                message = self._messages.recv()
            except EOFError:
                self._messages.close()
                self._messages = None
            else:
                if isinstance(message, _Ready):
                    self.ready, self.answer = True, message.answer
                elif isinstance(message, ManyhandsError):
                    self.error = message

    @property
    def pid(self) -> int:
        """The pid of the started process."""
        assert self._process is not None
        return _pid(self._process)

    def has_ended(self) -> bool:
        """Return whether the process has ended; its child processes may still be running."""
        return self._process is None or has_ended(_pid(self._process))

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process, which then stops its child processes in order."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> int | None:
        """Kill the process and its group; return its exit code, or None if it was not running."""
        if self._process is None:
            return None
        end_group(_pid(self._process))  # the process is not joined yet, so its pid cannot be reused
        self._process.kill()
        self._process.join()
        exit_code = self._process.exitcode
        self._process.close()
        self._process = None
        self.read()
        return exit_code


def _pid(process: multiprocessing.process.BaseProcess) -> int:
    assert process.pid is not None  # always set after `start`
    return process.pid


def _part_main(part: Part, directory: Path, parent_pid: int, messages: Connection, style: LogStyle) -> None:
    """Run a part in its process, and send expected errors to the supervisor.

    After an error, the process exits immediately: its threads and processes would keep it
    alive, and only ended parts are restarted. The supervisor kills the rest of the group.
    """
    name_process(f"{part.name} {style.run}".rstrip())
    lead_own_group()
    die_with_parent(parent_pid)
    kill_forks_at_end()
    log_to_stderr(part.name, style)
    log_the_unforeseen()
    from coordinator.store.engine import in_one_sentence  # imported here to save the supervisor's memory

    try:
        with in_one_sentence():
            part.main(directory, parent_pid, lambda answer=None: messages.send(_Ready(answer)))
    except ManyhandsError as error:
        messages.send(error)
        exit_now(error.exit_code)
    except Exception:  # logged here, because no caller logs it
        logger.exception("the %s failed", part.name)
        exit_now(FAILED)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in processes that are started in the block."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
