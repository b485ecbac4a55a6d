"""The agent's workers: run one at a time, and restarted after failures that a restart may fix.

`Workers.run` starts and restarts them. It puts their messages into the agent's event queue; the
agent's event handlers send messages to the running worker.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from auth.errors import ConfigError, ManyhandsError, MemoryLimitError, SwarmError, WorkerError
from peer.agent.patience import patiently
from peer.agent.worker_process import Watchdog, WorkerMain, WorkerProcess
from peer.config.run import RunConfig
from peer.control.session import pause, unless
from peer.limits.policy import Action, Decision
from peer.limits.usage import kills_for_memory
from peer.reporting.messages import (
    CheckpointFetched,
    CheckpointWanted,
    ClockRead,
    Failed,
    KeeperAt,
    KeeperSought,
    LineMeasured,
    Lost,
    LostCause,
    Notice,
    Progress,
    Ready,
    StepReport,
    Stopped,
    WorkerMessage,
    WorkerPlan,
)

STOP_GRACE_S = 8.0  # time limit for the worker to leave the swarm
WATCHDOG_S = 900.0  # a worker silent for this long counts as hung
SILENT_S = 300.0  # health checks fail if the worker is silent for longer
END_GRACE_S = 5.0  # time limit for a process to end after closing its pipe
FAILURE_WINDOW_S = 300.0
MAX_FAILURES = 3  # give up after this many failures within the window
RESTART_DELAY_S = 2.0
EXPLAINED_AT = 3  # diagnose the network after this many failures to join the swarm


@dataclass(frozen=True)
class WorkerStarted:
    """A worker process has started; its messages follow."""

    pid: int  # process id, which is also the process group id


@dataclass(frozen=True)
class WorkerEnded:
    """A worker process has ended; all its messages have been received."""

    cause: str


WorkersEvent = WorkerMessage | WorkerStarted | WorkerEnded


class StopRequest:
    """A request to leave the run, with a reason."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""

    def ask(self, reason: str) -> None:
        """Ask the workers to leave the run; an empty reason does not replace an earlier one."""
        self.reason = reason or self.reason
        self.asked.set()


class Workers:
    """The agent's workers, run one at a time; event handlers call `decided` and `tell`.

    A worker starts only after its predecessor's messages have been handled, so no answer is lost.
    """

    def __init__(
        self,
        main: WorkerMain,
        stop: StopRequest,
        events: asyncio.Queue[Any],
        explain: Callable[[SwarmError], Coroutine[Any, Any, ManyhandsError]],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._main, self._stop, self._events = main, stop, events
        self._explain, self._clock, self._rng = explain, clock, rng
        self._decision = Decision(Action.GO)
        self._may_go, self._must_halt = asyncio.Event(), asyncio.Event()  # neither is set before the first decision
        self._halted_by = Action.GO
        self._found: int | None = None  # microbatch size that the last worker chose
        self._worker: WorkerProcess | None = None  # the running worker, if any
        self._watchdog: Watchdog | None = None  # the running worker's watchdog
        self._awaits_checkpoint = False  # the worker is waiting for a checkpoint download
        self._keeper_at = KeeperAt(())  # the keeper's latest addresses
        self._keeper_moved = asyncio.Event()
        self._clock_offset_s = math.nan  # latest known offset of the coordinator's clock
        self._rate: float | None = None  # latest bandwidth; None if not measured since joining
        self._missed = 0  # consecutive failures to join the swarm
        self._ready_at = math.inf  # time when the last worker became ready; infinite if it has not

    @property
    def are_well(self) -> bool:
        """Whether the running worker has shown a sign of life in the last `SILENT_S` seconds.

        Also true if no worker is running, for example during a pause.
        """
        return self._watchdog is None or self._watchdog.silent_s < SILENT_S

    def decided(self, decision: Decision) -> None:
        """Apply a limit decision: allow workers to run, or make the running one leave the swarm."""
        self._decision = decision
        goes = decision.action is Action.GO
        (self._may_go if goes else self._must_halt).set()
        (self._must_halt if goes else self._may_go).clear()

    def tell(self, message: KeeperAt | LineMeasured | CheckpointFetched | ClockRead) -> None:
        """Send a message to the running worker; later workers get the information in their plans."""
        match message:
            case KeeperAt():
                if message != self._keeper_at:
                    self._keeper_moved.set()
                self._keeper_at = message
            case LineMeasured():
                self._rate = message.rate
            case ClockRead():
                self._clock_offset_s = message.offset_s
            case CheckpointFetched():
                self._awaits_checkpoint = False
        if self._worker is not None:
            self._worker.tell(message)

    async def run(self, plan: WorkerPlan) -> None:
        """Run workers one after another until stopped; raise a failure that no restart can fix.

        A failure to join the swarm is never final; the next worker waits for the keeper.
        """
        failures: list[float] = []
        if not self._keeper_at.addresses:
            self._keeper_at = KeeperAt(plan.initial_peers)
        while True:
            self._missed = 0
            halted, failure = await patiently(
                partial(self._next_worker, plan), _is_of_swarm, self._tell, self._rng, self._rest
            )
            if self._stop.asked.is_set() or (failure is None and not halted):
                return
            smaller = halved(plan, self._found)
            if failure is None:  # halted for a pause, or to free memory
                if self._halted_by is Action.SHRINK:
                    plan = replace(plan, microbatch_size=_require_smaller(smaller))
                continue
            if failure.short_of_memory and smaller is not None:
                plan = replace(plan, microbatch_size=smaller)
                self._tell(Notice("warning", f"{failure.text} Starting again with microbatches of {smaller}."))
                continue
            if failure.code == SwarmError.code:
                self._tell(Notice("warning", f"{failure.text} Starting again."))
                await pause(self._stop.asked, RESTART_DELAY_S)
                continue
            failures.append(self._clock())
            if failure.code == ConfigError.code or not restart_allowed(failures, self._clock()):
                raise _error_of(failure)
            self._tell(Notice("warning", f"{failure.text} Starting again."))
            await pause(self._stop.asked, RESTART_DELAY_S * len(failures))

    def _tell(self, event: WorkersEvent) -> None:
        self._events.put_nowait(event)

    async def _next_worker(self, plan: WorkerPlan) -> tuple[bool, Failed | None]:
        """Run one worker once the limits allow it; return (whether halted, failure or None).

        Raises `SwarmError` if the worker could not join the swarm.
        """
        if self._stop.asked.is_set() or not await unless(self._stop.asked, self._may_go.wait()):
            return False, None
        worker = self._worker = WorkerProcess(self.as_of_now(plan), self._main)
        self._ready_at = math.inf
        failure = await self._run_one(worker)
        if worker.asked_to_stop:
            return True, None
        if failure is None or self._stop.asked.is_set():
            return False, None
        if failure.code == SwarmError.code:
            self._tell(KeeperSought())
            if self._clock() - self._ready_at >= FAILURE_WINDOW_S:
                return False, failure  # the worker was in the swarm for a long time: reset the failure count
            raise await self._unreached(SwarmError(failure.text))
        return False, failure

    def as_of_now(self, plan: WorkerPlan) -> WorkerPlan:
        """Return the plan with the keeper's current addresses, and the latest bandwidth and clock offset."""
        place = plan.place if self._rate is None else replace(plan.place, bandwidth=self._rate)
        return replace(plan, initial_peers=self._keeper_at.addresses, place=place, clock_offset_s=self._clock_offset_s)

    async def _unreached(self, error: SwarmError) -> ManyhandsError:
        """Return the error to show; only failure number `EXPLAINED_AT` gets a network diagnosis."""
        self._missed += 1
        if self._missed != EXPLAINED_AT:
            return error
        return await unless(self._stop.asked, self._explain(error)) or error

    async def _rest(self, seconds: float) -> None:
        """Wait for `seconds`, a stop request or new keeper addresses, whichever comes first."""
        self._keeper_moved.clear()
        await unless(self._stop.asked, pause(self._keeper_moved, seconds))

    async def _run_one(self, worker: WorkerProcess) -> Failed | None:
        """Run one worker to its end; return its failure, or None if it left the swarm gracefully."""
        kills = kills_for_memory()
        worker.start()
        self._tell(WorkerStarted(worker.pid))
        stopping = asyncio.create_task(self._stop_when_told(worker))
        underway, last = Underway(), None
        try:
            last = await self._listen(worker, underway)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(worker.ended(), END_GRACE_S)
        except asyncio.TimeoutError:
            last = Failed("worker", WorkerError.exit_code, "The training process hung and was killed.")
        finally:
            stopping.cancel()
            worker.end()
            self._worker, self._watchdog, self._awaits_checkpoint = None, None, False
            if (lost := underway.lost(worker.asked_to_stop)) is not None:
                self._tell(lost)
            failure = _failure_of(worker, last, kills)
            self._tell(WorkerEnded("left in order" if failure is None else failure.text))
        await self._events.join()
        return failure

    async def _listen(self, worker: WorkerProcess, underway: Underway) -> Stopped | Failed | None:
        """Forward messages; return the worker's last status. Raises `TimeoutError` if the worker hangs."""
        last: Stopped | Failed | None = None
        watchdog = self._watchdog = Watchdog(WATCHDOG_S, time.monotonic)
        while (message := await asyncio.wait_for(worker.next_event(), watchdog.left_s)) is not None:
            watchdog.hear(message, self._awaits_checkpoint)
            underway.hear(message)
            match message:
                case Ready():
                    self._found, self._ready_at = message.microbatch_size, self._clock()
                case CheckpointWanted():
                    self._awaits_checkpoint = True
                case Stopped() | Failed():
                    last = message
            self._tell(message)
        return last

    async def _stop_when_told(self, worker: WorkerProcess) -> None:
        await unless(self._stop.asked, self._must_halt.wait())
        self._halted_by = self._decision.action
        worker.ask_to_stop(self._stop.reason or self._decision.reason)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(worker.ended(), STOP_GRACE_S)
        worker.end()


def _failure_of(worker: WorkerProcess, last: Stopped | Failed | None, kills: int | None) -> Failed | None:
    """Return an ended worker's failure, or None if it left the swarm gracefully.

    `last` is its `Stopped` or `Failed` message, if any; `kills` counts earlier out-of-memory kills.
    """
    if last is not None:
        return last if isinstance(last, Failed) else None
    if worker.exit_code == -signal.SIGKILL and (kills is None or kills_for_memory() != kills):
        text = "The system killed the training process because memory had run out."
        return Failed("worker", WorkerError.exit_code, text, short_of_memory=True)
    code = worker.exit_code
    ending = signal.strsignal(-code) if code is not None and code < 0 else f"exit code {code}"
    return Failed("worker", WorkerError.exit_code, f"The training process died ({ending}).")


def restart_allowed(failures: list[float], now: float) -> bool:
    """Return whether a worker may be restarted, given the times of all failures; the last is `now`."""
    return len([at for at in failures if at > now - FAILURE_WINDOW_S]) < MAX_FAILURES


def halved(plan: WorkerPlan, found: int | None) -> int | None:
    """Return half the plan's microbatch size, or None if it is already 1.

    If the plan has no size, halve `found` (a worker's choice), or the run's size if that is None.
    """
    if found is None:
        found = RunConfig.from_json(plan.run_config_json).data.microbatch_size
    return (plan.microbatch_size or found) // 2 or None


class Underway:
    """A worker's samples that are not yet averaged into a step, and are lost if the worker dies."""

    def __init__(self) -> None:
        self._step, self._samples, self._ended = 1, 0, False

    def hear(self, message: WorkerMessage) -> None:
        """Update the count from a worker's message."""
        match message:
            case Ready():
                self._step, self._samples = message.step + 1, 0
            case Progress():
                self._step, self._samples = message.step + 1, message.own_samples
            case StepReport():
                self._step, self._samples = message.step + 1, 0
            case Lost() | Stopped():  # the worker itself reports these samples as lost
                self._ended = True

    def lost(self, was_told_to_stop: bool) -> Lost | None:
        """Return the samples lost with the worker; None if there are none or it reported them."""
        if self._ended or not self._samples:
            return None
        cause = LostCause.LEFT if was_told_to_stop else LostCause.DIED
        return Lost(self._step, {cause.value: self._samples})


def _require_smaller(microbatch_size: int | None) -> int:
    if microbatch_size is None:
        raise MemoryLimitError(
            "`--max-memory` is not enough for one sample at a time: allow more, or help a run with a smaller model."
        )
    return microbatch_size


def _is_of_swarm(error: BaseException) -> bool:
    return isinstance(error, SwarmError)


def _error_of(failure: Failed) -> ManyhandsError:
    """Convert a failure to the error with its code, or to `MemoryLimitError` if memory ran out."""
    if failure.short_of_memory:
        return MemoryLimitError(
            f"{failure.text} Not even one sample at a time fits: close other programs, or join from another machine."
        )
    classes: list[type[ManyhandsError]] = [ManyhandsError]
    for kind in classes:
        classes += kind.__subclasses__()
    chosen = next((kind for kind in classes if kind.code == failure.code), WorkerError)
    return chosen(failure.text)
