"""The keeper's process: `run_keeper` is its main function, and `open_keeper` connects its parts.

It has its own process because it forks its swarm node, and reports to the service through the
database.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from hivemind.utils.logging import use_hivemind_log_handler
from sqlalchemy.exc import DBAPIError

from auth.credentials import Credentials
from auth.errors import SwarmError
from coordinator.checkpoints.manifest import newest_verified
from coordinator.checkpoints.probe import make_probes
from coordinator.checkpoints.rewind import set_aside_undone
from coordinator.keeper.alarm_watch import AlarmWatch, DeviceWatch
from coordinator.keeper.checkpointing import Checkpointing
from coordinator.keeper.duties import StatusWriter, grant, renew, steer
from coordinator.keeper.keeper import Keeper
from coordinator.keeper.lock import KeeperLock, require_its_checkpoints, require_its_identity
from coordinator.keeper.receipts import KeeperReceipts
from coordinator.keeper.recovery import Recovery
from coordinator.keeper.way_chooser import WayChooser
from coordinator.ledger.ledger import Ledger
from coordinator.members.membership import Membership
from coordinator.members.quarantine import hear_all
from coordinator.run.directory import RunDirectory
from coordinator.run.logs import tell_step
from coordinator.run.ports import keeper_place
from coordinator.store.engine import Database, open_engine
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.checkpoint_state import restore_model, restore_optimizer
from peer.network.traffic import Traffic
from peer.reporting.event_log import FOLDER, EventLog, ProcessEnded, ProcessStarted
from peer.reporting.suspicions import WaitingSuspicions
from peer.runtime.processes import exit_now, stop_at_sigterm
from peer.runtime.version import software_version
from peer.swarm.swarm import Swarm

logger = logging.getLogger(__name__)


def run_keeper(run_dir: str, parent_pid: int, ready: Callable[[], None]) -> None:
    """Run the keeper's process until SIGTERM arrives or the parent process ends.

    `ready` is called once the swarm's first node is open; the configuration may cause earlier errors.
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
    stop = stop_at_sigterm()  # not earlier: the forked swarm node must keep SIGTERM's default action
    keeper.recovery.resume_ledger(keeper.advance, stop.is_set)
    keeper.run(lambda: stop.is_set() or os.getppid() != parent_pid)
    events.add(ProcessEnded(cause="told to stop"))


def become_the_only_one(directory: RunDirectory, database: Database, should_stop: Callable[[], bool]) -> KeeperLock:
    """Wait until no other keeper serves this run. Raises `ConfigError` if this one cannot take over."""

    def require_a_successor() -> None:
        require_its_identity(database, Credentials(directory.keeper_dir).device_key.peer_id)
        require_its_checkpoints(database, directory.checkpoints_dir)

    lock = KeeperLock(database.engine)
    with suppress(DBAPIError):  # if the database does not answer, `wait` retries
        if lock.try_take():
            return lock
        require_a_successor()
    if lock.wait(should_stop, time.sleep):
        require_a_successor()
    return lock


def open_keeper(directory: RunDirectory, database: Database, lock: KeeperLock, events: EventLog) -> Keeper:
    """Restore the newest verified checkpoint, open the first node, and connect the parts."""
    config, clock = directory.config, time.time
    membership = Membership.of_run(directory, database, clock)
    credentials = Credentials(directory.keeper_dir)
    granted = grant(membership, credentials, config.run.name)
    credentials.store_grant(
        config.run.name, directory.authority.public_bytes, granted.token_jwt, membership.revocations_jwt()
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
        restore_optimizer(model, swarm.training.optimizer, checkpoint.path)
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
    chooser = WayChooser(database, config, swarm.training.shapes, clock)
    alarms, devices = AlarmWatch(database, directory, ledger, clock), DeviceWatch(database, clock)
    policy, device_id = directory.settings.quarantine_policy, granted.device_id
    return Keeper(
        swarm=swarm,
        lock=lock,
        recovery=Recovery(swarm, ledger, database, directory.checkpoints_dir, checkpointing, lock, clock),
        receipts=KeeperReceipts(ledger, device_id),
        checkpointing=checkpointing,
        on_step=(
            lambda outcome: alarms.step_taken(outcome.era, outcome.step, swarm.state.sketch),
            lambda _outcome: chooser.step_taken(swarm.lines, swarm.batch_s),
        ),
        duties=(
            partial(steer, database, swarm, checkpointing, chooser),
            StatusWriter(database, swarm, clock).write,
            partial(renew, membership, credentials, clock),
            partial(hear_all, database, policy, suspicions, device_id, clock),
            checkpointing.provide_for_joiners,
            lambda: alarms.look(swarm.step),
            lambda: devices.look(swarm.step),
        ),
        clock=clock,
    )


def _end_at_once(events: EventLog, lost: SwarmError) -> NoReturn:
    events.add(ProcessEnded(cause=str(lost)))
    logger.error("%s The keeper ends at once, to be started again.", lost)
    exit_now(lost.exit_code)
