"""The keeper: the swarm's first DHT node, and an averaging peer without samples, so that it holds the newest state.

It gives that state to joining peers, writes checkpoints, and tells the service through the database how things stand.
It runs as a process of its own because hivemind forks; `run_keeper` is that process's main function.
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
POLL_S = 0.03  # a full batch waits for the keeper so long at most
STATUS_PERIOD_S = 1.0
SURVIVORS_WAIT_S = 10.0  # how long peers that outlived the keeper get to be found; they look for it every 5 s
SURVIVORS_TOLD_S = 60.0  # and so long to hear of it by sessions opened anew: where it has moved, or would undo steps
SURVIVORS_STATE_S = 60.0  # and so long, once they are found, to agree on a state that can be taken
TOKEN_RENEWAL_SHARE = 2 / 3


@dataclass
class Keeper:
    """The keeper's parts; `run` is its loop."""

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
    figures: tuple[RoundTally, Census, int | None] | None = None  # that were written last
    turned_away: int = 0  # joiners, as far as heeded
    unfiled: StepOutcome | None = None  # the newest step, while nobody else is known to have taken it

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Average with the trainers, write checkpoints and status, until told to stop; then a last checkpoint."""
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
        """Find peers that trained on while the keeper was away; if there are none, undo the steps that are lost.

        While steps may have to be undone none is taken: whoever joins meanwhile has the old state, too.
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
        """Make the keeper's state the run's: all peers return to it, in a new era."""
        self.lock.check()
        logger.warning("steps after %d are lost: %s", self.swarm.step, reason)
        self.swarm.state.restore(self.swarm.step, self.ledger.roll_back(self.swarm.step))

    def _advance(self) -> None:
        """Take the next step with the trainers, or catch up with them, and do what follows from a step."""
        outcome = self.swarm.advance()
        if outcome is None:
            return
        self.checkpointing.state_is_own = outcome.averaged
        if not outcome.averaged:
            self.unfiled = None  # the others have gone on without the keeper, perhaps from another average
        else:
            logger.info("step %d: group of %d, %s samples", outcome.step, outcome.group_size, outcome.group_samples)
            self._file_receipt()  # of the step before, which this group has taken, too
            self.unfiled = outcome
            self.alarms.step_taken(outcome.era, outcome.step, self.swarm.state.sketch)
            self.chooser.step_taken(self.swarm.lines, self.swarm.batch_s)
            self.checkpointing.write_if_due()

    def _steer(self) -> None:
        """Let everybody do what operators have said; a run that has ended leaves a checkpoint of its last step."""
        helm = read_helm(self.database)
        self.swarm.steer(helm.beacon(self.swarm.step))
        self.checkpointing.every_steps = helm.at(self.swarm.step).checkpoint_every
        if not self.swarm.has_ended:
            self.chooser.look(helm, self.swarm.step, self.swarm.slow_lines)
        else:
            self.checkpointing.write_if_due(stopping=True)

    def _return_if_told(self) -> None:
        """Take up the checkpoint that an operator has gone back to; raises `StorageError` if none is left."""
        era = self.ledger.current_era()
        if era <= self.swarm.state.era:
            return
        checkpoints_dir = self.directory.checkpoints_dir
        set_aside_undone(checkpoints_dir, self.ledger.last_counting_step)
        stored = newest_verified(checkpoints_dir)
        if stored is None:
            raise StorageError(f"{checkpoints_dir} holds no checkpoint to go back to.")
        if self.ledger.last_known_step() > stored.manifest.step:  # the very one was damaged meanwhile
            era = self.ledger.roll_back(stored.manifest.step)
        self.checkpointing.restore(stored, era)
        logger.warning("gone back to step %d: all peers resume from there", stored.manifest.step)

    def _file_receipt(self) -> None:
        """Tell the ledger what the keeper received of each trainer towards the newest step, unless it has been told.

        A round may end for the keeper alone. Then the others take the step again, perhaps without the keeper, which was
        killed; a receipt of the first round would contradict their reports.
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
        """Store the swarm threads' suspicions here, where waiting for the database delays no averaging round."""
        witness = self.credentials.access_token(self.clock()).device_id
        for found in self.suspicions.take():
            claim = SuspicionReport(found.peer_id, found.kind, found.step, found.detail)
            try:
                hear(self.database, self.directory.settings.quarantine_policy, claim, witness, self.clock())
            except RequestError as error:  # a peer that no table knows: its log line is all there is
                logger.warning("%s", error)

    def _provide_for_joiners(self) -> None:
        """Write a checkpoint for joiners that the keeper turned away: they download it from the web server."""
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
    """Leave out, and tell, what a database on a full or failing disk does not take: the swarm must go on."""
    try:
        yield
    except DBAPIError as error:
        found = trouble(error)
        if found is None:
            raise
        logger.error("%s: %s", what, found, stacklevel=3)  # each `with` is a cause of its own in the log


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
        ledger=ledger,
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
    """Wait until no other keeper serves this run; raises `ConfigError` for one that could not take its place."""

    def require_a_successor() -> None:
        require_its_identity(database, Credentials(directory.keeper_dir).device_key.peer_id)
        require_its_checkpoints(database, directory.checkpoints_dir)

    lock = KeeperLock(database.engine)
    with suppress(DBAPIError):  # a database that does not answer is waited for
        if lock.try_take():
            return lock
        require_a_successor()
    if lock.wait(should_stop, time.sleep):
        require_a_successor()
    return lock


def run_keeper(run_dir: str, parent_pid: int, ready: Callable[[], None]) -> None:
    """Main function of the keeper's process; ends on SIGTERM, or when the parent is gone.

    `ready` is called once the swarm's first node is open: what fails before that may be the run's configuration.
    """
    use_hivemind_log_handler("nowhere")  # its stack traces of lost peers are no news to an operator
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
    stop = stop_at_sigterm()  # only now: the processes that hivemind has forked must keep SIGTERM's default action
    keeper.resume_ledger(stop.is_set)
    keeper.run(lambda: stop.is_set() or os.getppid() != parent_pid)
    events.add(ProcessEnded(cause="told to stop"))
