"""The agent: the volunteer's side of the control plane, and the supervisor of the training worker.

The agent joins the run, downloads its files, and then handles events from one queue. Events come
from the machine monitor (`peer.limits.monitor`), the session (`peer.control.session`), the workers
(`peer.agent.workers`) and the tasks that answer their requests (`peer.agent.worker_requests`). They
are handled one at a time; `Agent.handlers` maps event types to handlers.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from auth.credentials import Credentials
from auth.errors import ManyhandsError, SwarmError, UnreachableError
from peer.agent.options import AgentOptions
from peer.agent.patience import patiently
from peer.agent.presence import OwnPresence, answering_relays, offered_relays
from peer.agent.stay_work import StayWork
from peer.agent.terminal import Display, DisplayEvent, PanelState
from peer.agent.worker_process import KILLED_S, WorkerMain, choose_device, default_worker_main
from peer.agent.worker_requests import CHECKPOINT_FOLDER, CheckpointWatch, KeeperSearch, LineWatch
from peer.agent.workers import STOP_GRACE_S, StopRequest, WorkerEnded, Workers, WorkersEvent, WorkerStarted
from peer.config.run import RunConfig
from peer.config.trust import check_reach
from peer.control.client import ControlClient
from peer.control.events import Connected, CutOff, KeeperTold, SessionEvent, Standing, Welcomed
from peer.control.login import LoginPrompt, show_as_text
from peer.control.reachability import find_place, measured_bandwidth
from peer.control.session import Session, SessionSides, unless
from peer.limits.events import GuestEvent, Leaving, Paused, Resumed
from peer.limits.monitor import POLL_S, Machine, watch
from peer.limits.policy import Action, Decision, Readings, unknown_to_polite
from peer.limits.usage import UsageMeter, disk_use, used_of
from peer.network.endpoints import best_ways
from peer.network.placement import Placement, describe
from peer.protocol import control_pb2
from peer.reporting.event_log import (
    FOLDER,
    TAKEN,
    AnyEvent,
    ChildEnded,
    ChildStarted,
    Downloaded,
    EventLog,
    LimitsHeld,
    ProcessEnded,
    ProcessStarted,
    SessionChanged,
)
from peer.reporting.messages import (
    CheckpointFetched,
    CheckpointWanted,
    ClockRead,
    Failed,
    KeeperAt,
    KeeperSought,
    LineInDoubt,
    LineMeasured,
    Lost,
    Notice,
    Progress,
    Ready,
    StepReport,
    Transferred,
    WorkerPlan,
)
from peer.reporting.outbox import Outbox
from peer.reporting.suspicions import Suspicion, WaitingSuspicions
from peer.runtime.processes import beat
from peer.runtime.version import require_understood, software_version, update_notice

FAREWELL_S = 4.0
LONGEST_STOP_S = STOP_GRACE_S + KILLED_S + FAREWELL_S  # time limit for an agent to stop before it is killed
USED_EVERY_S = 30.0
WAITING_FOR_KEEPER = (
    "Waiting for the run's keeper, which is not reachable yet: this machine has joined, and starts automatically "
    "once the keeper is reachable."
)


@dataclass(frozen=True)
class StayOver:
    """The agent's last event, sent after all tasks that produce events have ended."""


MachineEvent = Readings | Decision | GuestEvent
AnswerEvent = KeeperAt | LineMeasured | CheckpointFetched
AgentEvent = MachineEvent | SessionEvent | WorkersEvent | AnswerEvent | StayOver


async def unexplained(error: SwarmError) -> ManyhandsError:
    """Return the error unchanged, without a network diagnosis; the default for `explain`."""
    return error


class Agent:
    """A device's participation in a run: `run` joins the run and takes part, `stop` leaves it."""

    def __init__(
        self,
        options: AgentOptions,
        open_display: Callable[[PanelState], Display],
        clock: Callable[[], float],
        worker_main: WorkerMain = default_worker_main,
        read_machine: Callable[[], Readings] | None = None,
        poll_s: float = POLL_S,
        show_login: Callable[[LoginPrompt], None] = show_as_text,
        explain: Callable[[SwarmError], Coroutine[Any, Any, ManyhandsError]] = unexplained,
    ) -> None:
        self._options, self._open_display, self._clock = options, open_display, clock
        self._read_machine = (
            read_machine or Machine(options.limits, options.cloud, options.state_dir, time.monotonic).read
        )
        self._poll_s, self._show_login = poll_s, show_login
        self._rng = random.Random()
        self._stop = StopRequest()
        self._events: asyncio.Queue[AgentEvent] = asyncio.Queue()
        self._tell = self._events.put_nowait
        # Objects that outlive individual workers and sessions.
        self._credentials = Credentials(options.state_dir)
        self._account = UsageMeter(options.limits)
        self._outbox = Outbox(options.state_dir / "outbox.sqlite", clock)
        self._suspicions = WaitingSuspicions()
        self._presence = OwnPresence(options.role)
        self._log = EventLog(options.data_dir / FOLDER, "agent", clock)
        # Helpers that contact the coordinator on behalf of a worker.
        self._client: ControlClient  # set once the device has joined
        self._keeper = KeeperSearch(lambda: self._client.swarm_addresses(), self._tell)
        self._line = LineWatch(self._measure_line, self._tell)
        self._checkpoints = self._make_checkpoint_watch()
        self._workers = Workers(worker_main, self._stop, self._events, explain, clock, self._rng)
        # State of the event handlers.
        self._decision: Decision | None = None  # None before the first readings
        self._readings = Readings()  # latest readings
        self._used_due_s = 0.0
        self._told_unknown = False
        self._newer = ""  # last notice shown about a newer version
        self._is_cut_off = self._disk_is_full = False
        self._work = StayWork()
        self._display: Display | None = None
        self._watching: asyncio.Task[None] | None = None
        self._device, self._fault = "", ""  # device to train on; reason for not using a better one

    @property
    def handlers(self) -> dict[type, Callable[[Any], None]]:
        """The handler for each event type; events of other types are only displayed."""
        return {
            # From the monitor: machine readings, and decisions based on the volunteer's limits.
            Readings: self._on_readings,
            Decision: self._on_decision,
            # From the coordinator, through the session.
            Welcomed: self._on_welcomed,
            Connected: self._on_connected,
            ClockRead: self._workers.tell,
            KeeperTold: lambda told: self._keeper.hear(told.addresses),
            CutOff: self._on_cut_off,
            # From the running worker: its life cycle and its results.
            WorkerStarted: lambda started: self._account.worker_started(started.pid),
            WorkerEnded: self._on_worker_ended,
            Ready: self._on_progress,
            Progress: self._on_progress,
            StepReport: self._on_report,
            Lost: self._on_lost,
            Standing: self._on_standing,
            Suspicion: self._suspicions.put,
            Transferred: self._account.take,
            Failed: self._on_failed,
            # Requests from the worker, and the replies to them.
            KeeperSought: lambda _: self._keeper.seek(),
            KeeperAt: self._workers.tell,
            LineInDoubt: lambda _: self._line.measure(),
            LineMeasured: self._workers.tell,
            CheckpointWanted: self._checkpoints.fetch,
            CheckpointFetched: self._workers.tell,
        }

    async def _handle_events(self) -> None:
        """Handle events until `StayOver` arrives."""
        handlers = self.handlers
        while not isinstance(event := await self._events.get(), StayOver):
            if (entry := logged(event)) is not None:
                self._log.add(entry)
            handlers.get(type(event), self._show)(event)
            self._events.task_done()

    def stop(self, reason: str) -> None:
        """Leave the swarm gracefully; exit immediately on a second call."""
        if self._stop.asked.is_set():
            os._exit(130)  # the worker and its children die with this process
        self._leave(reason)
        self._tell(Notice("info", "Leaving the swarm, which takes up to ten seconds; a second signal exits at once."))

    async def run(self) -> None:
        """Train or assist until stopped. Raises `ManyhandsError` if a person must fix an error."""
        peer_id = self._credentials.device_key.peer_id
        self._log.add(ProcessStarted(software=software_version(), role=self._options.role, peer=peer_id))
        handling = asyncio.create_task(self._handle_events())
        # If a handler fails, for example because the disk is full, no more events are handled.
        handling.add_done_callback(lambda _: self._leave())
        try:
            await self._stay(handling)
        finally:
            if self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
            self._tell(StayOver())
            await asyncio.gather(handling, return_exceptions=True)
            self._show(replace(self._work, at_end=True))
            if self._display is not None:
                self._display.close()
            self._outbox.close()
            self._log.add(ProcessEnded(cause=str(sys.exc_info()[1] or self._stop.reason or "nothing is left to do")))
        handling.result()

    async def _stay(self, handling: asyncio.Task[None]) -> None:
        reply = await unless(self._stop.asked, self._enter_patiently())
        if reply is None:  # stopped while waiting for a login or the coordinator
            return
        try:
            self._begin_display(reply.member, number=reply.device_number or None)  # hide 0, the keeper's number
            if self._fault:
                self._tell(Notice("warning", f"Training on {self._device}: {self._fault}."))
            await self._take_part(reply, handling)
        finally:
            await self._client.close()

    async def _enter_patiently(self) -> control_pb2.JoinReply:
        """Join the run; if this device has joined before, retry while the coordinator is down."""
        run = self._options.link.run

        def may_pass(error: BaseException) -> bool:
            return isinstance(error, UnreachableError) and self._credentials.member_of(run) is not None

        def tell(notice: Notice) -> None:
            self._begin_display(self._credentials.member_of(run) or "", connected=False)
            self._begin_watching()  # limits also apply while waiting
            self._tell(notice)

        return await patiently(self._enter, may_pass, tell, self._rng)

    async def _enter(self) -> control_pb2.JoinReply:
        """Connect, join, and download the run's files."""
        options = self._options
        client = await ControlClient.connect(options.link, self._clock)
        try:
            if not self._device:
                self._device, self._fault = await choose_device(options.device, options.data_dir)
            reply = await client.admit(
                self._credentials.device_key,
                self._show_login,
                known=(options.state_dir / "token.jwt").exists(),
                invite=options.invite,
                provider=options.login,
                role=options.role,
                software=software_version(),
            )
            self._credentials.store_grant(options.link.run, reply.authority_key, reply.token, reply.revocations)
            require_understood(reply.run_config_json, client.software_version, client.software_address)
            if options.role == "trainer":  # only trainers open data sources
                check_reach(RunConfig.from_json(reply.run_config_json), options.allowed)
            await client.fetch_files(reply, options.tokenizer_dir, self._account.fetching)
        except BaseException:  # close the client on cancellation, too, because the caller cannot
            await client.close()
            raise
        self._client = client
        return reply

    async def _take_part(self, reply: control_pb2.JoinReply, handling: asyncio.Task[None]) -> None:
        """Run the session and the training; when one ends, shut down the other gracefully."""
        self._keeper.hear(reply.initial_peers)
        self._workers.tell(ClockRead(self._client.clock_offset_s))
        session_stop = asyncio.Event()
        talking = asyncio.create_task(self._make_session().run(session_stop))
        training = asyncio.create_task(self._train(reply))
        watching = self._begin_watching()
        try:
            await asyncio.wait({talking, training, watching, handling}, return_when=asyncio.FIRST_COMPLETED)
            if not training.done():  # the session ended, e.g. because this device was quarantined
                self._leave()
                await asyncio.wait({training, handling}, return_when=asyncio.FIRST_COMPLETED)
            session_stop.set()
            await asyncio.wait({talking}, timeout=FAREWELL_S)
        finally:
            self._keeper.stop()
            for task in talking, training, watching:
                task.cancel()
            results = await asyncio.gather(talking, training, watching, return_exceptions=True)
            self._tell(used_of(self._account.on(self._readings), at_end=True))
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _make_session(self) -> Session:
        return Session(
            self._client,
            SessionSides(self._outbox, self._suspicions, lambda: self._presence.now, self._credentials, self._tell),
            clock=self._clock,
            rng=self._rng,
            hardware=f"{self._device}, {os.cpu_count()} cores",
            software=software_version(),
        )

    async def _train(self, reply: control_pb2.JoinReply) -> None:
        plan = await self._plan(reply)
        if plan is not None:
            await self._workers.run(plan)

    async def _plan(self, reply: control_pb2.JoinReply) -> WorkerPlan | None:
        """Wait for the keeper's addresses and return the worker's plan, or None if stopped first."""
        options = self._options
        if not self._keeper.known.is_set():
            self._tell(Notice("info", WAITING_FOR_KEEPER))
            if not await unless(self._stop.asked, self._keeper.known.wait()):
                return None
        place = await unless(self._stop.asked, find_place(self._client, options.listen, options.client_mode))
        if place is None:
            return None
        place = place.within(*options.limits.rates)
        self._tell(Notice("info", describe(place)))
        self._presence.relays = offered_relays(place, options.limits, self._credentials.device_key.peer_id)
        return options.plan(
            reply,
            device=self._device,
            place=place,
            initial_peers=await best_ways(self._keeper.addresses),
            relays=await answering_relays(reply.relays) if place.reach == "relayed" else (),
        )

    def _make_checkpoint_watch(self) -> CheckpointWatch:
        """Return a checkpoint downloader that respects the volunteer's disk limit."""
        options, most = self._options, self._options.limits.disk_bytes
        return CheckpointWatch(
            lambda: self._client.newest_checkpoint(self._credentials.token_jwt),
            options.data_dir / CHECKPOINT_FOLDER,
            link_hosts={link.host for link in options.link.each()},
            throttle=self._account.fetching,
            room_bytes=lambda: None if most is None else most - disk_use(options.state_dir),
            tell=self._tell,
            rng=self._rng,
        )

    async def _measure_line(self) -> float | None:
        """Return the bandwidth in bytes/s, capped at the volunteer's limits; None on failure."""
        limits, measured = self._options.limits, await measured_bandwidth(self._client)
        return None if measured is None else Placement(bandwidth=measured).within(*limits.rates).bandwidth

    def _begin_display(self, member: str, connected: bool = True, number: int | None = None) -> None:
        state = PanelState(run=self._options.link.run, member=member, connected=connected, device_number=number)
        self._display = self._display or self._open_display(state)

    def _begin_watching(self) -> asyncio.Task[None]:
        if self._watching is None:
            looking = watch(self._options.limits, self._read, self._clock, self._tell, self._poll_s)
            self._watching = asyncio.create_task(looking)
        return self._watching

    def _read(self) -> Readings:
        return self._account.on(self._read_machine())

    def _leave(self, reason: str = "") -> None:
        """Ask all tasks to stop, and report this peer's state as "stopping" from now on."""
        self._presence.stopping()
        self._stop.ask(reason)

    @property
    def _is_to_train(self) -> bool:
        goes = self._decision is not None and self._decision.action is Action.GO
        return goes and not self._stop.asked.is_set()

    def _on_readings(self, readings: Readings) -> None:
        if self._workers.are_well:
            beat(self._options.state_dir)
        self._readings = readings
        if readings.elapsed_s >= self._used_due_s:
            self._used_due_s = readings.elapsed_s + USED_EVERY_S
            self._show(used_of(readings))
        unknown = unknown_to_polite(readings) if self._options.limits.polite else ()
        if unknown and not self._told_unknown:
            self._told_unknown = True
            self._show(Notice("info", f"`--polite`: this system does not report {', nor '.join(unknown)}."))

    def _on_decision(self, decision: Decision) -> None:
        before, self._decision = self._decision, decision
        self._workers.decided(decision)
        match decision.action:
            case Action.LEAVE:
                self._leave(decision.reason)
                self._show(Leaving(decision.reason))
            case Action.SHRINK:
                self._show(Notice("warning", f"Starting again with half the microbatch: {decision.reason}."))
            case Action.PAUSE:
                self._presence.paused()
                self._show(Paused(decision.reason))
            case Action.GO if before is not None:
                self._presence.starting()
                self._show(Resumed())

    def _on_welcomed(self, by: Welcomed) -> None:
        """Show a notice about a newer version once; updates are never installed automatically."""
        notice = update_notice(by.version, software_version(), by.address)
        if notice is not None and notice != self._newer:
            self._newer = notice
            self._show(Notice("warning", notice))

    def _on_connected(self, connected: Connected) -> None:
        if connected.up or not self._stop.asked.is_set():  # leaving closes the session, so no message is needed
            self._show(connected)

    def _on_cut_off(self, event: CutOff) -> None:
        self._is_cut_off = True
        self._show(Notice("error", event.reason))

    def _on_worker_ended(self, _: WorkerEnded) -> None:
        """Add the ended worker's usage to the total, and cancel its pending requests."""
        self._account.worker_ended()
        self._line.stop()
        self._checkpoints.stop()
        if self._is_to_train:
            self._presence.starting()

    def _on_progress(self, event: Ready | Progress) -> None:
        if self._is_to_train:
            self._presence.hear(event)
        self._show(event)

    def _on_report(self, report: StepReport) -> None:
        self._work = self._work.after(report)
        self._outbox.put(report, self._clock())
        self._tell_of_waiting()
        self._show(report)

    def _on_lost(self, lost: Lost) -> None:
        """Report lost samples; if this device was cut off, the coordinator counts them itself."""
        self._work = self._work.after(lost)
        self._show(self._work)
        if not self._is_cut_off:
            self._outbox.put_lost(lost, self._clock())
            self._tell_of_waiting()

    def _on_standing(self, standing: Standing) -> None:
        self._work = self._work.after(standing)
        self._show(standing)

    def _tell_of_waiting(self) -> None:
        """Show one notice when the disk is full, and another when space is available again."""
        waits = self._outbox.waiting > 0
        if waits and not self._disk_is_full:
            self._show(Notice("warning", "The disk is full: training goes on, and reports wait in memory. Make room."))
        elif self._disk_is_full and not waits:
            self._show(Notice("info", "The disk has space again: all reports are saved."))
        self._disk_is_full = waits

    def _on_failed(self, failed: Failed) -> None:
        if failed.code != SwarmError.code:  # `Workers` shows a `SwarmError` with the retry delay
            self._show(failed)

    def _show(self, event: DisplayEvent) -> None:
        if self._display is not None:
            self._display.show(event)


def logged(event: AgentEvent) -> AnyEvent | None:
    """Return the event log entry for an agent event, or None if events of its type are not logged."""
    match event:
        case Connected():
            return SessionChanged(up=event.up)
        case Decision():
            return LimitsHeld(cause="" if event.action is Action.GO else event.reason)
        case WorkerStarted():
            return ChildStarted(child="worker", pid=event.pid)
        case WorkerEnded():
            return ChildEnded(child="worker", cause=event.cause)
        case CheckpointFetched():
            outcome = TAKEN if event.directory else "there was none to start from"
            return Downloaded(what="checkpoint", donor="", step=event.step, outcome=outcome)
        case _:
            return None


async def run_agent(agent: Agent) -> None:
    """Run the agent; on SIGINT (Ctrl-C) or SIGTERM, leave the swarm gracefully."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop, signal.Signals(number).name)
    try:
        await agent.run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
