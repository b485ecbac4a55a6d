"""The supervisor of `manyhands coordinator serve`: start, restart and stop the parts of a run.

The parts are separate processes for two reasons. First, the keeper forks its swarm node, but a
process with gRPC must not be forked. Second, validation and publishing must not delay the other
parts. The parts share only the database, so a failed part is restarted while the others continue.
The first Ctrl-C or SIGTERM stops all parts; a second one ends the command immediately.

Configuration errors occur before a part is ready, so such errors end the command. A part that has
been ready is always restarted: a database may be unreachable for seconds or for days.

To save memory, only `preparation` imports database and settings, in a separate process.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from auth.errors import WorkerError
from coordinator.run.logs import LogFormat, LogStyle, log_to_stderr
from coordinator.service.parts import SERVICE, Part, PartProcess, Prepared
from peer.reporting.event_log import FOLDER, NOWHERE, ChildEnded, ChildStarted, EventLog
from peer.runtime.console import say
from peer.runtime.processes import name_process
from peer.runtime.temporary import own_temporary_files

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL_S = 0.1
STOP_GRACE_S = 45.0  # long enough to write a large model's last checkpoint
AUXILIARY_GRACE_S = 10.0
LONGEST_STOP_S = STOP_GRACE_S + AUXILIARY_GRACE_S  # a process that stops the supervisor must wait longer than this
STEADY_S = 60.0  # uptime in seconds after which failures are counted from zero again
MAX_FAILURES = 6  # consecutive failures after which a part that was never ready is not restarted
REBIRTH_S = 1.0  # delay before restarting an auxiliary part that ended to free memory
LONGEST_PAUSE_S = 30.0  # maximum restart delay; short, because volunteers are waiting
LONGEST_AUXILIARY_PAUSE_S = 300.0


def serve_run(
    path: Path, *, service_only: bool = False, keeper_only: bool = False, log_format: LogFormat = LogFormat.TEXT
) -> None:
    """Prepare a run and supervise its parts until a signal arrives."""
    path = path.absolute()
    prepared = prepare_apart(
        path, preparation(service_only=service_only, keeper_only=keeper_only), LogStyle(log_format)
    )
    name_process(f"supervisor {prepared.run}")
    style = LogStyle(log_format, prepared.run, prepared.own_hosts)
    log_to_stderr("supervisor", style)
    tell = say if log_format is LogFormat.TEXT else logger.info

    def announce(part: Part) -> None:
        if part == SERVICE:
            tell(f"Join link: {prepared.join_link}")
            tell(f"Dashboard: {prepared.dashboard}")

    tell(f"Starting the run `{prepared.run}`: {', '.join(part.name for part in prepared.parts)}.")
    with own_temporary_files(), StopSignal() as stop:
        events = EventLog(path / FOLDER, "supervisor", time.time)
        processes = [PartProcess(part, path, style) for part in prepared.parts]
        Supervisor(processes, announce, events=events).run(stop)
    tell("Stopped in order.")


def preparation(*, service_only: bool, keeper_only: bool) -> Part:
    """Return the part that checks a run, migrates its database, and answers with a `Prepared`."""
    return Part("preparation", partial(_prepare, service_only=service_only, keeper_only=keeper_only))


def _prepare(
    directory: Path, _parent_pid: int, ready: Callable[..., None], *, service_only: bool, keeper_only: bool
) -> None:
    from coordinator.service.preparation import prepare

    ready(prepare(directory, service_only=service_only, keeper_only=keeper_only))


def prepare_apart(path: Path, part: Part, style: LogStyle) -> Prepared:
    """Prepare a run in a separate process. Raises the error that ended the preparation."""
    process = PartProcess(part, path, style)
    process.start()
    try:
        while not process.has_ended():
            time.sleep(POLL_S)
    finally:
        exit_code = process.end()
    if process.error is not None:
        raise process.error
    if not isinstance(process.answer, Prepared):
        raise WorkerError(f"The run could not be prepared (exit code {exit_code}); the lines above say why.")
    return process.answer


class Supervisor:
    """A supervisor that starts parts, restarts failed parts, and finally stops all parts."""

    def __init__(
        self,
        processes: Sequence[PartProcess],
        on_ready: Callable[[Part], None],
        clock: Callable[[], float] = time.monotonic,
        events: EventLog = NOWHERE,
    ) -> None:
        self._watched = [_Watched(process, clock, events) for process in processes]
        self._on_ready = on_ready

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Supervise until `should_stop()`; on return, all processes of all parts have ended.

        Raises a part's own error if its first start fails, and `WorkerError` if a part never
        becomes ready or must be killed at the end. Failures of auxiliary parts are never raised.
        """
        try:
            while not should_stop():
                for watched in self._watched:
                    if watched.tend():
                        self._on_ready(watched.process.part)
                time.sleep(POLL_S)
            self._stop()
        finally:
            for watched in self._watched:
                watched.process.end()

    def _stop(self) -> None:
        """Stop the parts, auxiliary parts last: the validator evaluates the last checkpoint."""
        processes = [watched.process for watched in self._watched]
        stuck = _stop_all([process for process in processes if not process.part.auxiliary], STOP_GRACE_S)
        _stop_all([process for process in processes if process.part.auxiliary], AUXILIARY_GRACE_S)
        if stuck:
            names = " and ".join(process.part.name for process in stuck)
            raise WorkerError(f"The {names} did not stop within {STOP_GRACE_S:g} s and had to be killed.")


class _Watched:
    """A part's process, with a record of its starts and failures."""

    def __init__(self, process: PartProcess, clock: Callable[[], float], events: EventLog) -> None:
        self.process = process
        self._clock, self._events = clock, events
        self._running = False
        self._said_ready = False
        self._start_at = clock()
        self._failures = 0  # consecutive failures
        self._starts = 0
        self._was_ready = False  # whether the part was ready at least once

    def tend(self) -> bool:
        """Start the part if due, or handle its exit; return whether it has just become ready."""
        now = self._clock()
        if self._running:
            self.process.read()
            if self.process.has_ended():
                self._bury(now)
        elif now >= self._start_at:
            self.process.start()
            self._events.add(ChildStarted(child=self.process.part.name, pid=self.process.pid))
            self._running, self._said_ready, self._start_at = True, False, now
            self._starts += 1
        newly_ready = self._running and self.process.ready and not self._said_ready
        self._said_ready = self._said_ready or newly_ready
        return newly_ready

    def _bury(self, now: float) -> None:
        """Clean up after an exited process; schedule the restart, or raise an error to give up."""
        exit_code, name = self.process.end(), self.process.part.name
        auxiliary = self.process.part.auxiliary
        self._running, self._was_ready = False, self._was_ready or self.process.ready
        reason = str(self.process.error or f"exit code {exit_code}")
        self._events.add(ChildEnded(child=name, cause=reason))
        if auxiliary and exit_code == 0:  # the part ended to free its memory
            self._failures, self._start_at = 0, now + REBIRTH_S
            return
        if self.process.error is not None and self._starts == 1 and not (auxiliary or self._was_ready):
            raise self.process.error
        self._failures = 1 if now - self._start_at >= STEADY_S else self._failures + 1
        delay_s = restart_delay_s(self._failures, auxiliary=auxiliary, was_ready=self._was_ready)
        if delay_s is None:
            raise WorkerError(f"The {name} failed {self._failures} times in a row, at last with: {reason}")
        logger.warning("the %s has died (%s); starting it again in %g s", name, reason, delay_s)
        self._start_at = now + delay_s


def restart_delay_s(failures: int, *, auxiliary: bool = False, was_ready: bool = False) -> float | None:
    """Return the restart delay in seconds after consecutive failures, or None to give up."""
    if failures < MAX_FAILURES:
        return float(2 ** (failures - 1))
    if auxiliary:
        return LONGEST_AUXILIARY_PAUSE_S
    return LONGEST_PAUSE_S if was_ready else None


def _stop_all(processes: Sequence[PartProcess], grace_s: float) -> list[PartProcess]:
    """Ask all processes to stop, and return those still running after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    for process in processes:
        process.ask_to_stop()
    while any(not process.has_ended() for process in processes) and time.monotonic() <= deadline:
        time.sleep(POLL_S)
    return [process for process in processes if not process.has_ended()]


class StopSignal:
    """A context in which the first signal sets `asked`, and the next raises `KeyboardInterrupt`.

    Only the main thread of a process can enter it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Return whether a signal has arrived."""
        return self.asked

    def __enter__(self) -> StopSignal:
        self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
