"""One stay's workers: one is kept running after another, until told to stop or until starting again is of no use.

The life of the workers is one story, `Workers.run`. What happens in it is told as events to the agent's queue, whose
handlers tell the workers what they are to know.
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

STOP_GRACE_S = 8.0  # for the worker to leave the swarm; with the goodbye it stays within ten
WATCHDOG_S = 900.0  # a worker that gives no sign of life for so long hangs
SILENT_S = 300.0  # and after so long something is likely wrong: health checks say so
END_GRACE_S = 5.0  # for a process whose pipe is closed already
FAILURE_WINDOW_S = 300.0
MAX_FAILURES = 3  # within the window
RESTART_DELAY_S = 2.0
EXPLAINED_AT = 3  # tries in a row that do not reach the swarm


@dataclass(frozen=True)
class WorkerStarted:
    """A worker's process runs; its messages follow."""

    pid: int  # of the process and of its group


@dataclass(frozen=True)
class WorkerEnded:
    """A worker's process is gone; everything that it said was told before."""

    cause: str


WorkersEvent = WorkerMessage | WorkerStarted | WorkerEnded


class StopRequest:
    """A request to end the stay, with its reason."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""

    def ask(self, reason: str) -> None:
        """Ask for the stay's end; the last reason that was given holds."""
        self.reason = reason or self.reason
        self.asked.set()


class Workers:
    """One stay's workers, one at a time. `run` tells `events`; `decided` and `tell` are for the handlers of events.

    A worker starts only when everything that the one before it said was handled: an answer reaches the one that asked.
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
        self._may_go, self._must_halt = asyncio.Event(), asyncio.Event()  # neither, before the first decision
        self._halted_by = Action.GO
        self._found: int | None = None  # samples that a worker computed at once, as far as they have said
        self._worker: WorkerProcess | None = None  # that runs
        self._watchdog: Watchdog | None = None  # of that worker
        self._awaits_checkpoint = False  # the worker waits for the agent's download
        self._keeper_at = KeeperAt(())  # as it was told last
        self._keeper_moved = asyncio.Event()
        self._clock_offset_s = math.nan  # of the coordinator's clock, likewise
        self._rate: float | None = None  # of the line, as it was told last; None: not since joining
        self._missed = 0  # how often in a row the swarm could not be joined
        self._ready_at = math.inf  # when the worker was that ran last; never, if it was not

    @property
    def are_well(self) -> bool:
        """Return whether the running worker has given a sign of life lately.

        True if no worker runs, as during a pause or while waiting for the keeper: nothing is wrong with this machine.
        """
        return self._watchdog is None or self._watchdog.silent_s < SILENT_S

    def decided(self, decision: Decision) -> None:
        """Let workers run, or have the one that runs leave the swarm."""
        self._decision = decision
        goes = decision.action is Action.GO
        (self._may_go if goes else self._must_halt).set()
        (self._must_halt if goes else self._may_go).clear()

    def tell(self, message: KeeperAt | LineMeasured | CheckpointFetched | ClockRead) -> None:
        """Tell the worker that runs; of keeper, line and clock those after it hear, too."""
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
        """Run workers one after another until told to stop; raises what the last one failed with.

        That the swarm cannot be joined is no such failure: the keeper is waited for.
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
            if failure is None:  # a pause, or too much memory
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
        """One worker, once limits allow it: whether it was halted, and its failure; raises `SwarmError`."""
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
                return False, failure  # it was in the swarm for long: what follows is no part of a row of tries
            raise await self._unreached(SwarmError(failure.text))
        return False, failure

    def as_of_now(self, plan: WorkerPlan) -> WorkerPlan:
        """Return the plan with what was told since it was made."""
        place = plan.place if self._rate is None else replace(plan.place, bandwidth=self._rate)
        return replace(plan, initial_peers=self._keeper_at.addresses, place=place, clock_offset_s=self._clock_offset_s)

    async def _unreached(self, error: SwarmError) -> ManyhandsError:
        """Return the error to tell; its reason is looked for once in a row of tries, for that takes a while."""
        self._missed += 1
        if self._missed != EXPLAINED_AT:
            return error
        return await unless(self._stop.asked, self._explain(error)) or error

    async def _rest(self, seconds: float) -> None:
        """Wait for so many seconds, or until the stay is to end or the keeper is reached elsewhere than before."""
        self._keeper_moved.clear()
        await unless(self._stop.asked, pause(self._keeper_moved, seconds))

    async def _run_one(self, worker: WorkerProcess) -> Failed | None:
        """Run one worker from start to end; return its failure, None if it ended in order."""
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
            last = Failed("worker", WorkerError.exit_code, "The training process hangs and was ended.")
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
        """Tell what it says until it ends, and return how it said that it ended; raises `TimeoutError` if it hangs."""
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
    """Return how a worker failed whose process is gone; None if it left in order.

    `last`: what it said of its end; `kills`: the system's kills for memory when it began.
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
    """Return whether a worker that failed at these times (seconds, `now` the last) is worth another start."""
    return len([at for at in failures if at > now - FAILURE_WINDOW_S]) < MAX_FAILURES


def halved(plan: WorkerPlan, found: int | None) -> int | None:
    """A microbatch that needs less memory than this plan's; None if there is none.

    `found` is what the worker computes at once where the plan leaves it the choice; None if it has not said.
    """
    if found is None:
        found = RunConfig.from_json(plan.run_config_json).data.microbatch_size
    return (plan.microbatch_size or found) // 2 or None


class Underway:
    """The samples of one worker that are in no step yet, as it last said: lost, if the worker dies."""

    def __init__(self) -> None:
        self._step, self._samples, self._ended = 1, 0, False

    def hear(self, message: WorkerMessage) -> None:
        """Follow the worker's messages."""
        match message:
            case Ready():
                self._step, self._samples = message.step + 1, 0
            case Progress():
                self._step, self._samples = message.step + 1, message.own_samples
            case StepReport():
                self._step, self._samples = message.step + 1, 0
            case Lost() | Stopped():  # it tells itself what it loses by leaving
                self._ended = True

    def lost(self, was_told_to_stop: bool) -> Lost | None:
        """Return the samples lost by the worker's end; None if there are none, or the worker has told of them."""
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
    """The worker's failure as the error whose exit code it named; one of memory, for which nothing can be halved."""
    if failure.short_of_memory:
        return MemoryLimitError(
            f"{failure.text} Not even one sample at a time fits: close other programs, or join from another machine."
        )
    classes: list[type[ManyhandsError]] = [ManyhandsError]
    for kind in classes:
        classes += kind.__subclasses__()
    chosen = next((kind for kind in classes if kind.code == failure.code), WorkerError)
    return chosen(failure.text)
