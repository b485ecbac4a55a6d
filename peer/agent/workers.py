"""One stay's workers: one is kept running after another, until told to stop or until starting again is of no use."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from auth.errors import ConfigError, ManyhandsError, MemoryLimitError, SwarmError, WorkerError
from peer.agent.admission import unless
from peer.agent.keeper_search import KeeperSearch
from peer.agent.patience import patiently
from peer.agent.presence import OwnPresence
from peer.agent.worker_process import Watchdog, WorkerMain, WorkerProcess
from peer.agent.worker_requests import CheckpointWatch, LineWatch
from peer.config.run import RunConfig
from peer.control.session_stream import pause, unless_stopped
from peer.limits.monitor import Watch
from peer.limits.policy import Action
from peer.limits.usage import UsageMeter, kills_for_memory
from peer.reporting.messages import (
    CheckpointWanted,
    Failed,
    KeeperAt,
    KeeperSought,
    LineInDoubt,
    Lost,
    LostCause,
    Notice,
    Progress,
    Ready,
    StepReport,
    Stopped,
    Transferred,
    WorkerEvent,
    WorkerMessage,
    WorkerPlan,
)
from peer.reporting.suspicions import Suspicion

STOP_GRACE_S = 8.0  # for the worker to leave the swarm; with the goodbye it stays within ten
WATCHDOG_S = 900.0  # a worker that gives no sign of life for so long hangs
END_GRACE_S = 5.0  # for a process whose pipe is closed already
FAILURE_WINDOW_S = 300.0
MAX_FAILURES = 3  # within the window
RESTART_DELAY_S = 2.0
EXPLAINED_AT = 3  # tries in a row that do not reach the swarm


class StopRequest:
    """A request to end the stay, with its reason."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.reason = ""

    def ask(self, reason: str) -> None:
        """Ask for the stay's end; the last reason holds."""
        self.reason = reason
        self.asked.set()


class Workers:
    """One stay's workers, one at a time; what they say goes to `on_event`."""

    def __init__(
        self,
        main: WorkerMain,
        stop: StopRequest,
        watch: Watch,
        account: UsageMeter,
        presence: OwnPresence,
        on_event: Callable[[WorkerEvent], None],
        on_suspicion: Callable[[Suspicion], None],
        on_lost: Callable[[Lost], None],
        explain: Callable[[SwarmError], Coroutine[Any, Any, ManyhandsError]],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._explain, self._rng = explain, rng
        self._on_suspicion, self._on_lost = on_suspicion, on_lost
        self._main, self._stop, self._watch, self._account = main, stop, watch, account
        self._presence, self._on_event, self._clock = presence, on_event, clock
        self._halted_by = Action.GO
        self._found: int | None = None  # samples that a worker computed at once, as far as they have said
        self._worker: WorkerProcess | None = None  # that runs
        self._keeper_at = KeeperAt(())  # as it was told last
        self._keeper_moved = asyncio.Event()
        self._missed = 0  # how often in a row the swarm could not be joined
        self._ready_at = math.inf  # when the worker was that ran last; never, if it was not

    def keeper_at(self, addresses: tuple[str, ...]) -> None:
        """Tell the worker that runs, and those after it, where the keeper is now."""
        if addresses != self._keeper_at.addresses:
            self._keeper_moved.set()
        self._keeper_at = KeeperAt(addresses)
        if self._worker is not None:
            self._worker.tell(self._keeper_at)

    async def run(self, plan: WorkerPlan, line: LineWatch, checkpoints: CheckpointWatch, keeper: KeeperSearch) -> None:
        """Run workers one after another until told to stop; raises what the last one failed with.

        That the swarm cannot be joined is no such failure: the keeper is waited for.
        """
        failures: list[float] = []
        if not self._keeper_at.addresses:
            self._keeper_at = KeeperAt(plan.initial_peers)
        while True:
            self._missed = 0
            stay = partial(self._next_worker, plan, line, checkpoints, keeper)
            halted, failure = await patiently(stay, _is_of_swarm, self._on_event, self._rng, self._rest)
            if self._stop.asked.is_set() or (failure is None and not halted):
                return
            smaller = halved(plan, self._found)
            if failure is None:  # a pause, or too much memory
                if self._halted_by is Action.SHRINK:
                    plan = replace(plan, microbatch_size=_require_smaller(smaller))
                continue
            if failure.short_of_memory and smaller is not None:
                plan = replace(plan, microbatch_size=smaller)
                self._on_event(Notice("warning", f"{failure.text} Starting again with microbatches of {smaller}."))
                continue
            if failure.code == SwarmError.code:
                self._on_event(Notice("warning", f"{failure.text} Starting again."))
                await pause(self._stop.asked, RESTART_DELAY_S)
                continue
            failures.append(self._clock())
            if failure.code == ConfigError.code or not restart_allowed(failures, self._clock()):
                raise _error_of(failure)
            self._on_event(Notice("warning", f"{failure.text} Starting again."))
            await pause(self._stop.asked, RESTART_DELAY_S * len(failures))

    async def _next_worker(
        self, plan: WorkerPlan, line: LineWatch, checkpoints: CheckpointWatch, keeper: KeeperSearch
    ) -> tuple[bool, Failed | None]:
        """One worker, once limits allow it: whether it was halted, and its failure; raises `SwarmError`."""
        if self._stop.asked.is_set() or not await unless_stopped(self._stop.asked, self._watch.may_go()):
            return False, None
        plan = replace(plan, initial_peers=self._keeper_at.addresses)
        worker = self._worker = WorkerProcess(line.within(plan), self._main)
        self._ready_at = math.inf
        failure = await self._run_one(worker, line, checkpoints, keeper)
        if worker.asked_to_stop:
            return True, None
        if failure is None or self._stop.asked.is_set():
            return False, None
        if self._watch.decision.action is Action.GO:
            self._presence.starting()
        if failure.code == SwarmError.code:
            keeper.seek()
            if self._clock() - self._ready_at >= FAILURE_WINDOW_S:
                return False, failure  # it was in the swarm for long: what follows is no part of a row of tries
            raise await self._unreached(SwarmError(failure.text))
        return False, failure

    async def _unreached(self, error: SwarmError) -> ManyhandsError:
        """Return the error to tell; its reason is looked for once in a row of tries, for that takes a while."""
        self._missed += 1
        if self._missed != EXPLAINED_AT:
            return error
        return await unless(self._stop.asked, self._explain(error)) or error

    async def _rest(self, seconds: float) -> None:
        """Wait for so many seconds, or until the stay is to end or the keeper is reached elsewhere than before."""
        self._keeper_moved.clear()
        await unless_stopped(self._stop.asked, pause(self._keeper_moved, seconds))

    async def _run_one(
        self, worker: WorkerProcess, line: LineWatch, checkpoints: CheckpointWatch, keeper: KeeperSearch
    ) -> Failed | None:
        """Run one worker from start to end; return its failure, None if it ended in order."""
        kills = kills_for_memory()
        worker.start()
        self._account.worker_started(worker.pid)
        stopping = asyncio.create_task(self._stop_when_told(worker))
        underway = Underway()
        try:
            last = await self._listen(worker, line, checkpoints, keeper, underway)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(worker.ended(), END_GRACE_S)
        except asyncio.TimeoutError:
            return Failed("worker", WorkerError.exit_code, "The training process hangs and was ended.")
        finally:
            stopping.cancel()
            line.stop()
            checkpoints.stop()
            worker.end()
            self._account.worker_ended()
            if (lost := underway.lost(worker.asked_to_stop)) is not None:
                self._on_lost(lost)
        if isinstance(last, Stopped | Failed):
            return last if isinstance(last, Failed) else None
        if worker.exit_code == -signal.SIGKILL and (kills is None or kills_for_memory() != kills):
            text = "The system killed the training process because memory had run out."
            return Failed("worker", WorkerError.exit_code, text, short_of_memory=True)
        code = worker.exit_code
        ending = signal.strsignal(-code) if code is not None and code < 0 else f"exit code {code}"
        return Failed("worker", WorkerError.exit_code, f"The training process died ({ending}).")

    async def _listen(
        self,
        worker: WorkerProcess,
        line: LineWatch,
        checkpoints: CheckpointWatch,
        keeper: KeeperSearch,
        underway: Underway,
    ) -> WorkerEvent | None:
        """Pass on what it says until it ends, and return its last word; raises `TimeoutError` if it hangs."""
        last: WorkerEvent | None = None
        watchdog = Watchdog(WATCHDOG_S, time.monotonic)
        while (event := await asyncio.wait_for(worker.next_event(), watchdog.left_s)) is not None:
            watchdog.hear(event, checkpoints.is_fetching)
            underway.hear(event)
            match event:
                case Transferred():
                    self._account.take(event)
                case Suspicion():
                    self._on_suspicion(event)
                case Lost():
                    self._on_lost(event)
                case LineInDoubt():
                    line.measure_for(worker)
                case CheckpointWanted():
                    checkpoints.fetch_for(worker, event)
                case KeeperSought():
                    keeper.seek()
                case Failed(code=SwarmError.code):
                    last = event  # told together with the pause that follows
                case _:
                    if isinstance(event, Ready):
                        self._found, self._ready_at = event.microbatch_size, self._clock()
                    last = event
                    self._hear(event)
        return last

    def _hear(self, event: WorkerEvent) -> None:
        if not self._stop.asked.is_set() and self._watch.decision.action is Action.GO:
            self._presence.hear(event)
        self._on_event(event)

    async def _stop_when_told(self, worker: WorkerProcess) -> None:
        await unless_stopped(self._stop.asked, self._watch.must_halt())
        if self._stop.asked.is_set():
            self._presence.stopping()
        self._halted_by = self._watch.decision.action
        worker.ask_to_stop(self._stop.reason or self._watch.decision.reason)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(worker.ended(), STOP_GRACE_S)
        worker.end()


def restart_allowed(failures: list[float], now: float) -> bool:
    """Whether a worker that failed at these times (seconds, `now` the last) is worth another start."""
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
