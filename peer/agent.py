"""The agent: a volunteer's side of the control plane, and the keeper of the worker that trains.

It joins, fetches what the run needs, keeps a worker running (`peer.workers`), sends its reports, renews the token and
shows what happens.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from auth.credentials import Credentials
from peer.admission import admit, unless
from peer.agent_options import AgentOptions
from peer.checkpoint_watch import CHECKPOINT_FOLDER, CheckpointWatch
from peer.config.reach import check_reach
from peer.control_client import ControlClient
from peer.dialling import are_keepers, best_ways
from peer.display import Connected, Display, DisplayEvent, PanelState, Standing
from peer.guest.account import Account, used_of
from peer.guest.decision import Action, Decision
from peer.guest.disk_use import DATA_FOLDER, disk_use
from peer.guest.events import Leaving, Paused, Resumed
from peer.guest.machine import Machine
from peer.guest.readings import Readings, unknown_to_polite
from peer.guest.versions import require_understood, software_version, update_notice
from peer.guest.watch import POLL_S, Watch, local_time
from peer.heartbeat import beat
from peer.line_watch import LineWatch
from peer.login_prompt import LoginPrompt, show_as_text
from peer.lost_causes import Lost
from peer.messages import Notice, StepReport, WorkerEvent, WorkerPlan
from peer.outbox import Outbox
from peer.own_presence import OwnPresence
from peer.place import Place, describe
from peer.place_finding import find_place, measured_bandwidth
from peer.protocol import control_pb2
from peer.relays import answering_relays, offered_relays
from peer.run_config import RunConfig
from peer.session import Session, SessionHandlers
from peer.suspicion import WaitingSuspicions
from peer.worker_process import WorkerMain, default_worker_main
from peer.workers import StopRequest, Workers

FAREWELL_S = 4.0
USED_EVERY_S = 30.0


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
    ) -> None:
        self._options, self._open_display, self._clock = options, open_display, clock
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
        self._show_login = show_login
        self._credentials = Credentials(options.state_dir)
        self._outbox = Outbox(options.state_dir / "outbox.sqlite", clock)
        self._stop = StopRequest()
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
            clock,
        )
        self._display: Display | None = None
        self._is_shut_out = False
        self._keeper_addresses: Sequence[str] = ()  # as they were told last
        self._telling: asyncio.Future[None] | None = None

    def stop(self, reason: str) -> None:
        """Leave in order; the second time, leave at once."""
        if self._stop.asked.is_set():
            os._exit(130)  # the worker's group dies with this process
        self._stop.ask(reason)
        self._show(Notice("info", "Leaving in order, which takes up to ten seconds; being told again ends at once."))

    async def run(self) -> None:
        """Take part until stopped; raises `ManyhandsError` for what a person must mend."""
        options = self._options
        client = await ControlClient.connect(options.link, self._clock)
        try:
            reply = await unless(
                self._stop.asked, admit(client, self._credentials.device_key, options, self._show_login)
            )
            if reply is None:  # told to stop while the person was to log in
                return
            self._credentials.store_grant(options.link.run, reply.authority_key, reply.token, reply.revocations)
            require_understood(reply.run_config_json, client.software_version)
            if options.role == "trainer":  # who only averages opens no source
                check_reach(RunConfig.from_json(reply.run_config_json), options.allowed)
            tokenizer_dir = options.state_dir / "tokenizer"
            await client.fetch_files(reply, tokenizer_dir, self._account.fetching)
            self._display = self._open_display(PanelState(run=options.link.run, member=reply.member))
            try:
                place = await find_place(client, options.listen, options.client_mode)
                place = place.within(*options.limits.rates)
                self._show(Notice("info", describe(place)))
                peer_id = self._credentials.device_key.peer_id
                self._presence.relays = offered_relays(place, options.limits, peer_id)
                relays = await answering_relays(reply.relays) if place.reach == "relayed" else ()
                plan = self._plan(reply, tokenizer_dir, place)
                self._keeper_addresses = tuple(reply.initial_peers)
                keeper = await best_ways(reply.initial_peers)
                await self._take_part(client, replace(plan, initial_peers=keeper, relays=relays))
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
        talking = asyncio.create_task(
            session.run(self._outbox, lambda: self._presence.now, self._handlers(), session_stop)
        )
        line = LineWatch(partial(self._measure_line, client), self._show)
        training = asyncio.create_task(self._workers.run(plan, line, self._checkpoints(client)))
        watching = asyncio.create_task(self._watch.run())
        try:
            await asyncio.wait({talking, training, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not training.done():  # revoked, say: there is nothing more to train for
                self._stop.asked.set()
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

    def _checkpoints(self, client: ControlClient) -> CheckpointWatch:
        """Where the workers' checkpoints come from, within what the volunteer allows of the disk."""
        options, most = self._options, self._options.limits.disk_bytes
        return CheckpointWatch(
            lambda: client.newest_checkpoint(self._credentials.token_jwt),
            options.state_dir / DATA_FOLDER / CHECKPOINT_FOLDER,
            link_hosts={link.host for link in options.link.each()},
            throttle=self._account.fetching,
            room_bytes=lambda: None if most is None else most - disk_use(options.state_dir),
            show=self._show,
            rng=random.Random(),
        )

    async def _measure_line(self, client: ControlClient) -> float | None:
        """As at joining: what the volunteer allows of it, in bytes per second."""
        limits, measured = self._options.limits, await measured_bandwidth(client)
        return None if measured is None else Place(bandwidth=measured).within(*limits.rates).bandwidth

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
        """Tell what the limits come to; pausing and leaving in order are the workers' part."""
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

    def _on_connected(self, up: bool) -> None:
        if up or not self._stop.asked.is_set():  # the goodbye closes the line, too
            self._show(Connected(up))

    def _on_swarm(self, addresses: Sequence[str]) -> None:
        """The keeper is reached there: if that is news, the workers hear it."""
        if addresses and addresses != self._keeper_addresses and are_keepers(addresses):
            self._keeper_addresses = addresses
            self._telling = asyncio.ensure_future(self._tell_keeper(addresses))

    async def _tell_keeper(self, addresses: Sequence[str]) -> None:
        self._workers.keeper_at(await best_ways(addresses))

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
            on_standing=lambda told: self._show(
                Standing(told.own_samples, told.rank, told.members, told.samples_per_second, told.time_left_s)
            ),
            on_revoked=self._on_revoked,
            on_connected=self._on_connected,
            on_version=self._on_version,
            on_swarm=self._on_swarm,
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
