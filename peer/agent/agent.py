"""The agent: a volunteer's side of the control plane, and the keeper of the worker that trains.

It joins, fetches what the run needs, keeps a worker running (`peer.agent.workers`), sends its reports, renews the token
and shows what happens.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from auth.credentials import Credentials
from auth.errors import ManyhandsError, SwarmError, UnreachableError
from peer.agent.admission import admit, unless
from peer.agent.device_choice import choose_device
from peer.agent.keeper_search import KeeperSearch
from peer.agent.options import AgentOptions
from peer.agent.patience import patiently
from peer.agent.presence import OwnPresence, answering_relays, offered_relays
from peer.agent.terminal import Connected, Display, DisplayEvent, PanelState, Standing
from peer.agent.worker_process import WorkerMain, default_worker_main
from peer.agent.worker_requests import CHECKPOINT_FOLDER, CheckpointWatch, LineWatch
from peer.agent.workers import StopRequest, Workers
from peer.config.run import RunConfig
from peer.config.trust import check_reach
from peer.control.client import ControlClient
from peer.control.login import LoginPrompt, show_as_text
from peer.control.reachability import find_place, measured_bandwidth
from peer.control.session import Session, SessionHandlers
from peer.control.session_stream import unless_stopped
from peer.limits.events import Leaving, Paused, Resumed
from peer.limits.monitor import POLL_S, Machine, Watch, local_time
from peer.limits.policy import Action, Decision, Readings, unknown_to_polite
from peer.limits.usage import DATA_FOLDER, UsageMeter, disk_use, used_of
from peer.network.endpoints import best_ways
from peer.network.placement import Placement, describe
from peer.protocol import control_pb2
from peer.reporting.messages import Lost, Notice, StepReport, WorkerEvent, WorkerPlan
from peer.reporting.outbox import Outbox
from peer.reporting.suspicions import WaitingSuspicions
from peer.runtime.processes import beat
from peer.runtime.version import require_understood, software_version, update_notice

FAREWELL_S = 4.0
USED_EVERY_S = 30.0
WAITING_FOR_KEEPER = (
    "Waiting for the run's keeper, which nobody can reach yet: this machine is admitted, and begins by itself "
    "as soon as the keeper is there."
)


async def unexplained(error: SwarmError) -> ManyhandsError:
    """The error itself: where nobody can look for its reason."""
    return error


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
        show_login: Callable[[LoginPrompt], None] = show_as_text,
        explain: Callable[[SwarmError], Coroutine[Any, Any, ManyhandsError]] = unexplained,
    ) -> None:
        self._options, self._open_display, self._clock = options, open_display, clock
        self._account = UsageMeter(options.limits)
        read_machine = read_machine or Machine(options.limits, options.cloud, options.state_dir, time.monotonic).read
        self._watch = Watch(
            options.limits,
            lambda: self._account.on(read_machine()),
            lambda: local_time(clock()),
            self._on_reading,
            self._on_decision,
            poll_s,
        )
        self._show_login = show_login
        self._credentials = Credentials(options.state_dir)
        self._outbox = Outbox(options.state_dir / "outbox.sqlite", clock)
        self._stop = StopRequest()
        self._rng = random.Random()
        self._told_unknown = False
        self._newer = ""  # what was told of the coordinator's version, if it is newer
        self._readings = Readings()  # the last ones
        self._used_due_s = 0.0
        self._presence = OwnPresence(options.role)
        self._suspicions = WaitingSuspicions()
        self._workers = Workers(
            worker_main,
            self._stop,
            self._watch,
            self._account,
            self._presence,
            self._on_event,
            self._suspicions.put,
            self._on_lost,
            explain,
            clock,
            self._rng,
        )
        self._display: Display | None = None
        self._watching: asyncio.Task[None] | None = None
        self._device, self._fault = "", ""  # the one to train on, once chosen, and what is wrong with a better one
        self._is_shut_out = False

    def stop(self, reason: str) -> None:
        """Leave in order; the second time, leave at once."""
        if self._stop.asked.is_set():
            os._exit(130)  # the worker's group dies with this process
        self._stop.ask(reason)
        self._show(Notice("info", "Leaving in order, which takes up to ten seconds; being told again ends at once."))

    async def run(self) -> None:
        """Take part until stopped; raises `ManyhandsError` for what a person must mend."""
        try:
            entered = await unless(self._stop.asked, self._enter_patiently())
            if entered is None:  # told to stop while the person was to log in, or the coordinator was waited for
                return
            client, reply = entered
            try:
                self._begin_display(reply.member)
                if self._fault:
                    self._show(Notice("warning", f"Training on {self._device}: {self._fault}."))
                await self._take_part(client, reply)
            finally:
                await client.close()
        finally:
            if self._watching is not None:
                self._watching.cancel()
                await asyncio.gather(self._watching, return_exceptions=True)
            if self._display is not None:
                self._display.close()
            self._outbox.close()

    async def _enter_patiently(self) -> tuple[ControlClient, control_pb2.JoinReply]:
        """Enter the run; a device that has joined it before waits for a coordinator that does not answer."""
        run = self._options.link.run

        def may_pass(error: BaseException) -> bool:
            return isinstance(error, UnreachableError) and self._credentials.member_of(run) is not None

        def tell(notice: Notice) -> None:
            self._begin_display(self._credentials.member_of(run) or "", connected=False)
            self._begin_watching()  # limits hold here, too
            self._show(notice)

        return await patiently(self._enter, may_pass, tell, self._rng)

    async def _enter(self) -> tuple[ControlClient, control_pb2.JoinReply]:
        """Connect, join, and fetch what the run needs; the client is the caller's to close."""
        options = self._options
        client = await ControlClient.connect(options.link, self._clock)
        try:
            if not self._device:
                self._device, self._fault = await choose_device(options.device, options.state_dir / DATA_FOLDER)
            reply = await admit(client, self._credentials.device_key, options, self._show_login)
            self._credentials.store_grant(options.link.run, reply.authority_key, reply.token, reply.revocations)
            require_understood(reply.run_config_json, client.software_version, client.software_address)
            if options.role == "trainer":  # who only averages opens no source
                check_reach(RunConfig.from_json(reply.run_config_json), options.allowed)
            await client.fetch_files(reply, self._tokenizer_dir, self._account.fetching)
        except BaseException:  # cancelled too: nobody else knows the client yet
            await client.close()
            raise
        return client, reply

    @property
    def _tokenizer_dir(self) -> Path:
        return self._options.state_dir / "tokenizer"

    async def _plan(
        self, client: ControlClient, reply: control_pb2.JoinReply, keeper: KeeperSearch
    ) -> WorkerPlan | None:
        """Plan for a worker, once the keeper can be reached; None if told to stop before."""
        options = self._options
        if not keeper.known.is_set():
            self._show(Notice("info", WAITING_FOR_KEEPER))
            if not await unless_stopped(self._stop.asked, keeper.known.wait()):
                return None
        place = await unless(self._stop.asked, find_place(client, options.listen, options.client_mode))
        if place is None:
            return None
        place = place.within(*options.limits.rates)
        self._show(Notice("info", describe(place)))
        self._presence.relays = offered_relays(place, options.limits, self._credentials.device_key.peer_id)
        return WorkerPlan(
            run_config_json=reply.run_config_json,
            credentials_dir=str(options.state_dir),
            tokenizer_dir=str(self._tokenizer_dir),
            data_dir=str(options.state_dir / DATA_FOLDER),
            initial_peers=await best_ways(keeper.addresses),
            relays=await answering_relays(reply.relays) if place.reach == "relayed" else (),
            device_number=reply.device_number,
            device=self._device,
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

    async def _take_part(self, client: ControlClient, reply: control_pb2.JoinReply) -> None:
        """Run training and session side by side; when either ends, the other ends in order."""
        session = Session(
            client,
            self._credentials,
            clock=self._clock,
            rng=self._rng,
            hardware=f"{self._device}, {os.cpu_count()} cores",
            software=software_version(),
        )
        keeper = KeeperSearch(client.swarm_addresses, self._workers.keeper_at)
        keeper.hear(reply.initial_peers)
        session_stop = asyncio.Event()
        talking = asyncio.create_task(
            session.run(self._outbox, lambda: self._presence.now, self._handlers(keeper), session_stop)
        )
        training = asyncio.create_task(self._train(client, reply, keeper))
        watching = self._begin_watching()
        try:
            await asyncio.wait({talking, training, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not training.done():  # revoked, say: there is nothing more to train for
                self._stop.asked.set()
                await asyncio.wait({training})
            session_stop.set()
            await asyncio.wait({talking}, timeout=FAREWELL_S)
        finally:
            keeper.stop()
            for task in talking, training, watching:
                task.cancel()
            results = await asyncio.gather(talking, training, watching, return_exceptions=True)
            self._show(used_of(self._account.on(self._readings), at_end=True))
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _train(self, client: ControlClient, reply: control_pb2.JoinReply, keeper: KeeperSearch) -> None:
        plan = await self._plan(client, reply, keeper)
        if plan is not None:
            line = LineWatch(partial(self._measure_line, client), self._show)
            await self._workers.run(plan, line, self._checkpoints(client), keeper)

    def _checkpoints(self, client: ControlClient) -> CheckpointWatch:
        """Make the source of the workers' checkpoints, within the volunteer's limit for the disk."""
        options, most = self._options, self._options.limits.disk_bytes
        return CheckpointWatch(
            lambda: client.newest_checkpoint(self._credentials.token_jwt),
            options.state_dir / DATA_FOLDER / CHECKPOINT_FOLDER,
            link_hosts={link.host for link in options.link.each()},
            throttle=self._account.fetching,
            room_bytes=lambda: None if most is None else most - disk_use(options.state_dir),
            show=self._show,
            rng=self._rng,
        )

    async def _measure_line(self, client: ControlClient) -> float | None:
        """Measure the line as at joining, cut to the volunteer's limits; in bytes per second."""
        limits, measured = self._options.limits, await measured_bandwidth(client)
        return None if measured is None else Placement(bandwidth=measured).within(*limits.rates).bandwidth

    def _on_reading(self, readings: Readings) -> None:
        beat(self._options.state_dir)
        self._readings = readings
        if readings.elapsed_s >= self._used_due_s:
            self._used_due_s = readings.elapsed_s + USED_EVERY_S
            self._show(used_of(readings))
        unknown = unknown_to_polite(readings) if self._options.limits.polite else ()
        if unknown and not self._told_unknown:
            self._told_unknown = True
            self._show(Notice("info", f"`--polite`: this system does not tell {', nor '.join(unknown)}."))

    def _on_decision(self, decision: Decision) -> None:
        """Show the limits' decision; pausing and leaving in order are the workers' part."""
        if decision.action is Action.LEAVE:
            self._show(Leaving(decision.reason))
            self._stop.ask(decision.reason)
        elif decision.action is Action.SHRINK:
            self._show(Notice("warning", f"Starting again with half the microbatch: {decision.reason}."))
        elif decision.action is Action.PAUSE:
            self._presence.paused()
            self._show(Paused(decision.reason))
        else:
            self._presence.starting()
            self._show(Resumed())

    def _on_event(self, event: WorkerEvent) -> None:
        if isinstance(event, StepReport):
            self._outbox.put(event, event.era, self._clock())
        self._show(event)

    def _on_lost(self, lost: Lost) -> None:
        """Tell the coordinator; of a device that it cut off it has counted that itself."""
        if not self._is_shut_out:
            self._outbox.put_lost(lost, self._clock())

    def _on_revoked(self, reason: str) -> None:
        self._is_shut_out = True
        self._show(Notice("error", reason))

    def _show(self, event: DisplayEvent) -> None:
        if self._display is not None:
            self._display.show(event)

    def _begin_display(self, member: str, connected: bool = True) -> None:
        state = PanelState(run=self._options.link.run, member=member, connected=connected)
        self._display = self._display or self._open_display(state)

    def _begin_watching(self) -> asyncio.Task[None]:
        self._watching = self._watching or asyncio.create_task(self._watch.run())
        return self._watching

    def _on_connected(self, up: bool) -> None:
        if up or not self._stop.asked.is_set():  # the goodbye closes the line, too
            self._show(Connected(up))

    def _on_version(self, version: str, address: str) -> None:
        """Tell of a newer version once, and how to install it; it is never installed from here."""
        notice = update_notice(version, software_version(), address)
        if notice is not None and notice != self._newer:
            self._newer = notice
            self._show(Notice("warning", notice))

    def _handlers(self, keeper: KeeperSearch) -> SessionHandlers:
        return SessionHandlers(
            on_token=self._credentials.store_token,
            on_revocations=self._credentials.store_revocations,
            on_notice=self._show,
            on_standing=lambda told: self._show(
                Standing(told.own_samples, told.rank, told.members, told.samples_per_second, told.time_left_s)
            ),
            on_revoked=self._on_revoked,
            on_connected=self._on_connected,
            on_version=self._on_version,
            on_swarm=keeper.hear,
            take_suspicions=self._suspicions.take,
        )


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
