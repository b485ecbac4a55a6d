"""The agent: a volunteer's side of the control plane, and the keeper of the worker that trains.

It joins, fetches what the run needs, starts the worker, sends its reports, renews the token and shows what happens. A
worker that dies or hangs is ended with all its processes and started again; the session goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from auth.credentials import Credentials
from auth.errors import ConfigError, ManyhandsError, MemoryLimitError, StorageError, WorkerError
from auth.join_link import JoinLink
from peer.compile_choice import CompileMode
from peer.control_client import ControlClient
from peer.display import Connected, Display, DisplayEvent, PanelState, Standing
from peer.guest.account import Account, used_of
from peer.guest.cloud import Cloud
from peer.guest.decision import Action, Decision
from peer.guest.disk_use import DATA_FOLDER
from peer.guest.events import Leaving, Paused, Resumed
from peer.guest.limits import NO_LIMITS, Limits
from peer.guest.machine import Machine
from peer.guest.readings import Readings, unknown_to_polite
from peer.guest.versions import require_understood, software_version, update_notice
from peer.guest.watch import POLL_S, Watch, local_time
from peer.messages import Failed, Notice, Progress, Ready, StepReport, Stopped, Transferred, WorkerEvent, WorkerPlan
from peer.outbox import Outbox
from peer.place import ANY_PORT, Place, describe
from peer.place_finding import find_place
from peer.precision import Wanted
from peer.protocol import control_pb2
from peer.run_config import RunConfig
from peer.session import Session, SessionHandlers
from peer.session_stream import unless_stopped
from peer.worker_process import Watchdog, WorkerMain, WorkerProcess, default_worker_main

STOP_GRACE_S = 8.0  # for the worker to leave the swarm; with the goodbye it stays within ten
WATCHDOG_S = 900.0  # a worker that says nothing for so long hangs: longer than a slow download of the state
FAILURE_WINDOW_S = 300.0
MAX_FAILURES = 3  # within the window
RESTART_DELAY_S = 2.0
FAREWELL_S = 4.0
USED_EVERY_S = 30.0


@dataclass(frozen=True)
class AgentOptions:
    """What the person asked for."""

    link: JoinLink
    state_dir: Path
    role: Literal["trainer", "auxiliary"] = "trainer"
    invite: str = ""
    device: str = "auto"
    precision: Wanted = "auto"
    threads: int | None = None
    microbatch_size: int | None = None
    compile: CompileMode = "auto"
    limits: Limits = NO_LIMITS
    cloud: Cloud = field(default=Cloud())
    client_mode: bool = False
    listen: tuple[str, ...] = ANY_PORT


def restart_allowed(failures: list[float], now: float) -> bool:
    """Whether a worker that failed at these times (seconds, `now` the last) is worth another start."""
    return len([at for at in failures if at > now - FAILURE_WINDOW_S]) < MAX_FAILURES


def halved(plan: WorkerPlan) -> WorkerPlan:
    """A plan for a worker that needs less memory; raises `MemoryLimitError` if there is none."""
    size = plan.microbatch_size or RunConfig.from_json(plan.run_config_json).data.microbatch_size
    if size == 1:
        raise MemoryLimitError(
            "`--max-memory` is not enough for one sample at a time: allow more, or help a run with a smaller model."
        )
    return replace(plan, microbatch_size=size // 2)


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the device's directory: two agents with one identity would spoil each other's connections."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (state_dir / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"Another `manyhands join` uses {state_dir}: stop it, or give this one a --state-dir of its own."
                ) from error
            yield
    except OSError as error:
        raise StorageError(f"Cannot use the directory {state_dir} ({error.strerror}).") from error


class Agent:
    """One device's stay in a run, from joining to leaving."""

    def __init__(
        self,
        options: AgentOptions,
        open_display: Callable[[PanelState], Display],
        clock: Callable[[], float],
        worker_main: WorkerMain = default_worker_main,
        read_machine: Callable[[], Readings] | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._options, self._open_display, self._clock, self._worker_main = options, open_display, clock, worker_main
        self._account = Account(options.limits)
        read_machine = read_machine or Machine(options.limits, options.cloud, options.state_dir, time.monotonic).read
        self._watch = Watch(
            options.limits,
            lambda: self._account.on(read_machine()),
            lambda: local_time(clock()),
            self._on_reading,
            self._on_decision,
            poll_s,
        )
        self._credentials = Credentials(options.state_dir)
        self._outbox = Outbox(options.state_dir / "outbox.sqlite", clock)
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._told_unknown = False
        self._newer = ""  # what was told of the coordinator's version, if it is newer
        self._readings = Readings()  # the last ones
        self._used_due_s = 0.0
        self._halted_by = Action.GO
        self._presence = control_pb2.Presence(state="starting")
        self._doing = "assisting" if options.role == "auxiliary" else "training"
        self._era = 0
        self._display: Display | None = None

    def stop(self, reason: str) -> None:
        """Leave in order; the second time, leave at once."""
        if self._stop.is_set():
            os._exit(130)  # the worker's group dies with this process
        self._stop_reason = reason
        self._stop.set()
        self._show(Notice("info", "Leaving in order, which takes up to ten seconds; being told again ends at once."))

    async def run(self) -> None:
        """Take part until stopped; raises `ManyhandsError` for what a person must mend."""
        options = self._options
        client = await ControlClient.connect(options.link, self._clock)
        try:
            key = self._credentials.device_key
            reply = await client.join(key, options.invite, role=options.role, software=software_version())
            self._credentials.store_grant(options.link.run, reply.authority_key, reply.token, reply.revocations)
            require_understood(reply.run_config_json, client.software_version)
            self._era = reply.era
            tokenizer_dir = options.state_dir / "tokenizer"
            await client.fetch_files(reply, tokenizer_dir, self._account.fetching)
            self._display = self._open_display(PanelState(run=options.link.run, member=reply.member))
            try:
                place = await find_place(client, options.listen, options.client_mode)
                place = place.within(options.limits.upload_rate, options.limits.download_rate)
                self._show(Notice("info", describe(place)))
                await self._take_part(client, self._plan(reply, tokenizer_dir, place))
            finally:
                self._display.close()
        finally:
            await client.close()
            self._outbox.close()

    def _plan(self, reply: control_pb2.JoinReply, tokenizer_dir: Path, place: Place) -> WorkerPlan:
        options = self._options
        return WorkerPlan(
            run_config_json=reply.run_config_json,
            credentials_dir=str(options.state_dir),
            tokenizer_dir=str(tokenizer_dir),
            data_dir=str(options.state_dir / DATA_FOLDER),
            initial_peers=tuple(reply.initial_peers),
            device_number=reply.device_number,
            device=options.device,
            precision=options.precision,
            threads=options.threads,
            microbatch_size=options.microbatch_size,
            compile=options.compile,
            max_hours=options.limits.max_hours,
            max_memory_bytes=options.limits.memory_bytes,
            upload_rate=options.limits.upload_rate,
            download_rate=options.limits.download_rate,
            place=place,
        )

    async def _take_part(self, client: ControlClient, plan: WorkerPlan) -> None:
        """Training and session side by side; when either ends, the other ends in order."""
        session = Session(
            client,
            self._credentials,
            clock=self._clock,
            rng=random.Random(),
            hardware=f"{plan.device}, {os.cpu_count()} cores",
            software=software_version(),
        )
        session_stop = asyncio.Event()
        talking = asyncio.create_task(session.run(self._outbox, lambda: self._presence, self._handlers(), session_stop))
        training = asyncio.create_task(self._keep_training(plan))
        watching = asyncio.create_task(self._watch.run())
        try:
            await asyncio.wait({talking, training, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not training.done():  # revoked, say: there is nothing more to train for
                self._stop.set()
                await asyncio.wait({training})
            session_stop.set()
            await asyncio.wait({talking}, timeout=FAREWELL_S)
        finally:
            for task in talking, training, watching:
                task.cancel()
            results = await asyncio.gather(talking, training, watching, return_exceptions=True)
            self._show(used_of(self._account.on(self._readings), at_end=True))
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _on_reading(self, readings: Readings) -> None:
        self._readings = readings
        if readings.elapsed_s >= self._used_due_s:
            self._used_due_s = readings.elapsed_s + USED_EVERY_S
            self._show(used_of(readings))
        unknown = unknown_to_polite(readings) if self._options.limits.polite else ()
        if unknown and not self._told_unknown:
            self._told_unknown = True
            self._show(Notice("info", f"`--polite`: this system does not tell {', nor '.join(unknown)}."))

    def _on_decision(self, decision: Decision) -> None:
        """Tell what the limits come to; pausing itself is `_keep_training`'s, leaving in order `_stop_worker`'s."""
        if decision.action is Action.LEAVE:
            self._stop_reason = decision.reason
            self._show(Leaving(decision.reason))
            self._stop.set()
        elif decision.action is Action.SHRINK:
            self._show(Notice("warning", f"Starting again with half the microbatch: {decision.reason}."))
        elif decision.action is Action.PAUSE:
            self._presence = control_pb2.Presence(step=self._presence.step, state="paused")
            self._show(Paused(decision.reason))
        else:
            self._presence = control_pb2.Presence(step=self._presence.step, state="starting")
            self._show(Resumed())

    async def _keep_training(self, plan: WorkerPlan) -> None:
        """Run workers one after another until told to stop; raises what the last one failed with."""
        failures: list[float] = []
        while await unless_stopped(self._stop, self._watch.may_go()):
            worker = WorkerProcess(plan, self._worker_main)
            failure = await self._run_worker(worker)
            if worker.asked_to_stop and not self._stop.is_set():  # a pause, or too much memory
                plan = halved(plan) if self._halted_by is Action.SHRINK else plan
                continue
            if failure is None or self._stop.is_set():
                return
            failures.append(self._clock())
            if failure.code == ConfigError.code or not restart_allowed(failures, self._clock()):
                raise _error_of(failure)
            self._show(Notice("warning", f"{failure.text} Starting again."))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), RESTART_DELAY_S * len(failures))

    async def _run_worker(self, worker: WorkerProcess) -> Failed | None:
        """One worker from start to end; None if it ended in order."""
        worker.start()
        self._account.worker_started(worker.pid)
        stopping = asyncio.create_task(self._stop_worker(worker))
        last: WorkerEvent | None = None
        watchdog = Watchdog(WATCHDOG_S, time.monotonic)
        try:
            while True:
                try:
                    event = await asyncio.wait_for(worker.next_event(), watchdog.left_s)
                except asyncio.TimeoutError:
                    return Failed("worker", WorkerError.exit_code, "The training process hangs and was ended.")
                if event is None:
                    break
                watchdog.hear(event)
                if isinstance(event, Transferred):
                    self._account.take(event)
                else:
                    last = event
                    self._handle(event)
        finally:
            stopping.cancel()
            worker.end()
            self._account.worker_ended()
        if isinstance(last, Stopped | Failed):
            return last if isinstance(last, Failed) else None
        return Failed("worker", WorkerError.exit_code, "The training process died (out of memory, or killed).")

    async def _stop_worker(self, worker: WorkerProcess) -> None:
        await unless_stopped(self._stop, self._watch.must_halt())
        if self._stop.is_set():
            self._presence = control_pb2.Presence(step=self._presence.step, state="stopping")
        self._halted_by = self._watch.decision.action
        worker.ask_to_stop(self._stop_reason or self._watch.decision.reason)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(worker.ended(), STOP_GRACE_S)
        worker.end()

    def _handle(self, event: WorkerEvent) -> None:
        halting = self._stop.is_set() or self._watch.decision.action is not Action.GO
        match event:
            case StepReport():
                self._outbox.put(event, self._era, self._clock())
            case Ready() if not halting:
                self._presence = control_pb2.Presence(step=event.step, state=self._doing)
            case Progress() if not halting:
                self._presence = control_pb2.Presence(
                    step=event.step,
                    own_samples=event.own_samples,
                    samples_per_second=event.samples_per_second,
                    state=self._doing,
                )
        self._show(event)

    def _show(self, event: DisplayEvent) -> None:
        if self._display is not None:
            self._display.show(event)

    def _on_connected(self, up: bool) -> None:
        if up or not self._stop.is_set():  # the goodbye closes the line, too
            self._show(Connected(up))

    def _on_version(self, version: str) -> None:
        """Tell of a newer version once; it is never installed from here."""
        notice = update_notice(version, software_version())
        if notice is not None and notice != self._newer:
            self._newer = notice
            self._show(Notice("warning", notice))

    def _handlers(self) -> SessionHandlers:
        return SessionHandlers(
            on_token=self._credentials.store_token,
            on_revocations=self._credentials.store_revocations,
            on_notice=self._show,
            on_standing=lambda standing: self._show(Standing(standing.own_samples, standing.rank, standing.members)),
            on_revoked=lambda reason: self._show(Notice("error", f"This device was revoked: {reason}")),
            on_connected=self._on_connected,
            on_version=self._on_version,
        )


def _error_of(failure: Failed) -> ManyhandsError:
    """The worker's failure as the error whose exit code it named."""
    classes: list[type[ManyhandsError]] = [ManyhandsError]
    for kind in classes:
        classes += kind.__subclasses__()
    chosen = next((kind for kind in classes if kind.code == failure.code), WorkerError)
    return chosen(failure.text)


async def run_agent(agent: Agent) -> None:
    """Run with Ctrl-C and SIGTERM as requests to leave in order."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop, signal.Signals(number).name)
    try:
        await agent.run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
