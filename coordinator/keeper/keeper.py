"""The keeper: the swarm's first DHT node, and an averaging peer that holds the newest state.

It sends that state to joining peers, writes checkpoints, and reports to the service through the
database. It is a process of its own because hivemind forks; `run_keeper` is its main function.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from hivemind.utils.logging import use_hivemind_log_handler
from sqlalchemy.exc import DBAPIError
from transformers import PreTrainedModel

from auth.credentials import Credentials
from auth.errors import RequestError, StorageError, SwarmError
from coordinator.checkpoints.manifest import newest_verified
from coordinator.checkpoints.probe import make_probes
from coordinator.checkpoints.rewind import set_aside_undone
from coordinator.keeper.alarm_watch import AlarmWatch, DeviceWatch
from coordinator.keeper.checkpointing import Checkpointing
from coordinator.keeper.lock import KeeperLock, require_its_checkpoints, require_its_identity
from coordinator.keeper.way_chooser import WayChooser
from coordinator.ledger.keeper_status import tell_keeper_addresses, write_swarm_status
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.speed import batch_left_s, run_speed
from coordinator.ledger.steering import read_helm
from coordinator.members.membership import Grant, Membership
from coordinator.members.quarantine import SuspicionReport, hear
from coordinator.run.directory import RunDirectory
from coordinator.run.logs import tell_step
from coordinator.run.ports import keeper_place
from coordinator.statistics.swarm_health import write_figures
from coordinator.store.engine import Database, open_engine, trouble
from peer.config.run import RunConfig
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.checkpoint_state import restore_model, restore_optimizer
from peer.network.traffic import Traffic
from peer.reporting.event_log import FOLDER, NOWHERE, EventLog, ProcessEnded, ProcessStarted
from peer.reporting.metrics import Census, RoundTally
from peer.reporting.suspicions import WaitingSuspicions
from peer.runtime.processes import exit_now, stop_at_sigterm
from peer.runtime.version import software_version
from peer.swarm.swarm import StepOutcome, Swarm

logger = logging.getLogger(__name__)
POLL_S = 0.03  # a full batch waits at most this long for the keeper
STATUS_PERIOD_S = 1.0
SURVIVORS_WAIT_S = 10.0  # time to find peers that outlived the keeper; they look for it every 5 s
SURVIVORS_TOLD_S = 60.0  # time for this if the keeper moved or would undo steps; peers may need new sessions
SURVIVORS_STATE_S = 60.0  # time for these peers to agree on a state for the keeper to download
TOKEN_RENEWAL_SHARE = 2 / 3


@dataclass
class Keeper:
    """The keeper, assembled from its parts; `run` is its main loop."""

    directory: RunDirectory
    config: RunConfig
    model: PreTrainedModel
    swarm: Swarm
    ledger: Ledger
    membership: Membership
    database: Database
    credentials: Credentials
    checkpointing: Checkpointing
    suspicions: WaitingSuspicions
    alarms: AlarmWatch
    devices: DeviceWatch
    chooser: WayChooser
    lock: KeeperLock
    clock: Callable[[], float] = time.time
    figures: tuple[RoundTally, Census, int | None] | None = None  # counts last written to the database
    turned_away: int = 0  # number of joiners for whom a checkpoint was already written
    unfiled: StepOutcome | None = None  # result of the newest step, until other peers are known to have taken it

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Average, and write checkpoints and the status, until stopped; then write a last checkpoint."""
        status_at = 0.0
        while not should_stop():
            if self.swarm.step_is_shared:
                self._file_receipt()
            self._advance()
            if self.swarm.state.is_disputed:
                self._undo_later_steps("members hold different states, and none is more common than others")
            if self.clock() - status_at >= STATUS_PERIOD_S:
                status_at = self.clock()
                self.lock.check()
                with _going_on("the keeper is neither steered nor seen"):
                    self._return_if_told()
                    self._steer()
                    self._write_status()
                    self._renew_token()
                    self._tell_suspicions()
                    self._provide_for_joiners()
                    self.alarms.look(self.swarm.step)
                    self.devices.look(self.swarm.step)
            time.sleep(POLL_S)
        self.checkpointing.write_if_due(stopping=True)
        if self.swarm.step_is_shared:
            self._file_receipt()
        self.swarm.leave()

    def resume_ledger(self, should_stop: Callable[[], bool]) -> None:
        """Find peers that kept training while the keeper was away; if there are none, undo the lost steps.

        Until this is decided, it takes no step: peers that join meanwhile have the old state.
        """
        has_moved = tell_keeper_addresses(self.database, self.swarm.addresses)
        recorded = self.ledger.last_known_step()
        resumed_at = self.swarm.step
        may_undo, are_found = recorded > resumed_at, False
        until = self.clock()
        if recorded or resumed_at:
            until += SURVIVORS_TOLD_S if may_undo or has_moved else SURVIVORS_WAIT_S
        while self.swarm.step == resumed_at and self.clock() < until and not should_stop():
            if self.swarm.is_behind and not are_found:
                are_found, until = True, self.clock() + SURVIVORS_STATE_S
            if self.swarm.is_behind or not may_undo:
                self._advance()
            time.sleep(POLL_S)
        if recorded > self.swarm.step and not should_stop():
            self._undo_later_steps("nobody holds their state any more")

    def _undo_later_steps(self, reason: str) -> None:
        """Undo all steps after the keeper's state; all peers return to it, in a new era."""
        self.lock.check()
        logger.warning("steps after %d are lost: %s", self.swarm.step, reason)
        self.swarm.state.restore(self.swarm.step, self.ledger.roll_back(self.swarm.step))

    def _advance(self) -> None:
        """Take the next step with the trainers or catch up with them, then do the work that a step needs."""
        outcome = self.swarm.advance()
        if outcome is None:
            return
        self.checkpointing.state_is_own = outcome.averaged
        if not outcome.averaged:
            self.unfiled = None  # the other peers continued without the keeper, perhaps from another average
        else:
            logger.info("step %d: group of %d, %s samples", outcome.step, outcome.group_size, outcome.group_samples)
            self._file_receipt()  # the previous step's receipt, because this group has taken that step too
            self.unfiled = outcome
            self.alarms.step_taken(outcome.era, outcome.step, self.swarm.state.sketch)
            self.chooser.step_taken(self.swarm.lines, self.swarm.batch_s)
            self.checkpointing.write_if_due()

    def _steer(self) -> None:
        """Apply operators' commands; if the run has ended, write a checkpoint of its last step."""
        helm = read_helm(self.database)
        self.swarm.steer(helm.beacon(self.swarm.step))
        self.checkpointing.every_steps = helm.at(self.swarm.step).checkpoint_every
        if not self.swarm.has_ended:
            self.chooser.look(helm, self.swarm.step, self.swarm.slow_lines)
        else:
            self.checkpointing.write_if_due(stopping=True)

    def _return_if_told(self) -> None:
        """Restore the checkpoint that an operator chose, if any. Raises `StorageError` if none is left."""
        era = self.ledger.current_era()
        if era <= self.swarm.state.era:
            return
        checkpoints_dir = self.directory.checkpoints_dir
        set_aside_undone(checkpoints_dir, self.ledger.last_counting_step)
        stored = newest_verified(checkpoints_dir)
        if stored is None:
            raise StorageError(f"{checkpoints_dir} holds no checkpoint to go back to.")
        if self.ledger.last_known_step() > stored.manifest.step:  # the chosen checkpoint was damaged meanwhile
            era = self.ledger.roll_back(stored.manifest.step)
        self.checkpointing.restore(stored, era)
        logger.warning("gone back to step %d: all peers resume from there", stored.manifest.step)

    def _file_receipt(self) -> None:
        """Record the receipt for the newest step, once other peers are known to have taken the step.

        A round may succeed for the keeper only. The others then repeat the step, perhaps after the
        keeper was killed, and a receipt from the first round would contradict their reports.
        """
        outcome, self.unfiled = self.unfiled, None
        if outcome is not None and outcome.receipt:
            device_id = self.credentials.access_token(self.clock()).device_id
            with _going_on("the receipt is not counted"):
                self.ledger.take_receipt(device_id, outcome.step, outcome.receipt)

    def _write_status(self) -> None:
        progress = self.swarm.progress()
        speed = run_speed(self.database, self.clock())
        write_swarm_status(
            self.database,
            step=progress.step,
            samples_accumulated=progress.swarm_samples,
            target_batch_size=progress.target_batch_size,
            peers=progress.peers,
            samples_per_second=speed,
            eta_s=batch_left_s(progress.swarm_samples, progress.target_batch_size, speed),
            addresses=self.swarm.addresses,
            now=self.swarm.heard_at,
        )
        figures = self.swarm.rounds, self.swarm.census, self.swarm.missing_auxiliaries
        if figures != self.figures:
            self.figures = figures
            write_figures(self.database, *figures)

    def _tell_suspicions(self) -> None:
        """Store suspicions that the swarm's threads collected, so their rounds do not wait for the database."""
        witness = self.credentials.access_token(self.clock()).device_id
        for found in self.suspicions.take():
            claim = SuspicionReport(found.peer_id, found.kind, found.step, found.detail)
            try:
                hear(self.database, self.directory.settings.quarantine_policy, claim, witness, self.clock())
            except RequestError as error:  # the database does not know the peer, so only the log records it
                logger.warning("%s", error)

    def _provide_for_joiners(self) -> None:
        """Write a checkpoint, for download over HTTP, if the keeper was too busy to send joiners its state."""
        if (turned_away := self.swarm.state.turned_away) > self.turned_away:
            self.turned_away = turned_away
            self.checkpointing.write_for_joiners()

    def _renew_token(self) -> None:
        token = self.credentials.access_token(self.clock())
        if self.clock() > token.issued_at + TOKEN_RENEWAL_SHARE * (token.expires_at - token.issued_at):
            self.credentials.store_token(_grant(self.membership, self.credentials, token.run).token_jwt)
        self.credentials.store_revocations(self.membership.revocations_jwt())


@contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Log and skip a write that fails on a full or failing disk, because the swarm must continue."""
    try:
        yield
    except DBAPIError as error:
        found = trouble(error)
        if found is None:
            raise
        logger.error("%s: %s", what, found, stacklevel=3)  # the log names the line of the `with`


def _grant(membership: Membership, credentials: Credentials, run: str) -> Grant:
    key = credentials.device_key
    return membership.grant_keeper(key.public_key, key.receipt_key(run).pseudonym)


def open_keeper(directory: RunDirectory, database: Database, lock: KeeperLock, events: EventLog = NOWHERE) -> Keeper:
    """Restore the newest verified checkpoint, if any, and open the swarm's first node."""
    config = directory.config
    clock = time.time
    membership = Membership.of_run(directory, database, clock)
    credentials = Credentials(directory.keeper_dir)
    grant = _grant(membership, credentials, config.run.name)
    credentials.store_grant(
        config.run.name, directory.authority.public_bytes, grant.token_jwt, membership.revocations_jwt()
    )
    vocabulary = load_tokenizer(directory.tokenizer_dir).get_vocab_size()
    model = build_model(config, vocabulary, load_special_ids(directory.tokenizer_dir))
    ledger = Ledger(database, config, clock)
    set_aside_undone(directory.checkpoints_dir, ledger.last_counting_step)
    checkpoint = newest_verified(directory.checkpoints_dir)
    if checkpoint is not None:
        restore_model(model, checkpoint.path)
    suspicions = WaitingSuspicions()
    place = keeper_place(directory.settings)
    swarm = Swarm.join(
        config=config,
        model=model,
        credentials=credentials,
        initial_peers=(),
        place=place,
        traffic=Traffic.of_donor(place.bandwidth),
        clock=clock,
        on_suspicion=suspicions.put,
        on_lost=partial(_end_at_once, events),
        events=events,
    )
    if checkpoint is not None:
        restore_optimizer(model, swarm.state.optimizer, checkpoint.path)
    if checkpoint is not None or ledger.current_era():
        swarm.state.restore(0 if checkpoint is None else checkpoint.manifest.step, ledger.current_era())
    checkpointing = Checkpointing(
        directory=directory,
        config=config,
        model=model,
        swarm=swarm,
        database=database,
        probes=make_probes(config, directory.tokenizer_dir),
        newest=None if checkpoint is None else checkpoint.manifest,
        clock=clock,
        events=events,
    )
    checkpointing.reconcile(checkpoint)
    return Keeper(
        directory=directory,
        config=config,
        model=model,
        swarm=swarm,
        ledger=ledger,
        membership=membership,
        database=database,
        credentials=credentials,
        checkpointing=checkpointing,
        suspicions=suspicions,
        alarms=AlarmWatch(database, directory, ledger, clock),
        devices=DeviceWatch(database, clock),
        chooser=WayChooser(database, config, [parameter.shape for parameter in swarm.state.parameters], clock),
        lock=lock,
        clock=clock,
    )


def _end_at_once(events: EventLog, lost: SwarmError) -> NoReturn:
    events.add(ProcessEnded(cause=str(lost)))
    logger.error("%s The keeper ends at once, to be started again.", lost)
    exit_now(lost.exit_code)


def become_the_only_one(directory: RunDirectory, database: Database, should_stop: Callable[[], bool]) -> KeeperLock:
    """Wait until no other keeper serves this run. Raises `ConfigError` if this one cannot take over."""

    def require_a_successor() -> None:
        require_its_identity(database, Credentials(directory.keeper_dir).device_key.peer_id)
        require_its_checkpoints(database, directory.checkpoints_dir)

    lock = KeeperLock(database.engine)
    with suppress(DBAPIError):  # a database that does not answer is waited for below
        if lock.try_take():
            return lock
        require_a_successor()
    if lock.wait(should_stop, time.sleep):
        require_a_successor()
    return lock


def run_keeper(run_dir: str, parent_pid: int, ready: Callable[[], None]) -> None:
    """Run the keeper's process until SIGTERM or the end of its parent.

    `ready` is called once the swarm's first node is open; errors before that may come from the
    configuration.
    """
    use_hivemind_log_handler("nowhere")  # operators need no stack traces of lost peers
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    directory = RunDirectory.open(Path(run_dir))
    database = Database(open_engine(directory.database_url))
    lock = become_the_only_one(directory, database, lambda: os.getppid() != parent_pid)
    if os.getppid() != parent_pid:
        return
    events = EventLog(directory.path / FOLDER, "keeper", time.time)
    peer_id = Credentials(directory.keeper_dir).device_key.peer_id
    events.add(ProcessStarted(software=software_version(), role="keeper", peer=peer_id))
    keeper = open_keeper(directory, database, lock, events)
    ready()
    tell_step(lambda: keeper.swarm.step)
    stop = stop_at_sigterm()  # not earlier: the processes that hivemind forks must keep SIGTERM's default action
    keeper.resume_ledger(stop.is_set)
    keeper.run(lambda: stop.is_set() or os.getppid() != parent_pid)
    events.add(ProcessEnded(cause="told to stop"))
