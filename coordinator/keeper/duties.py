"""The keeper's duties once a second: follow operators' commands, write the status, renew the credentials.

Each duty logs and skips a write that fails, because the swarm must continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from auth.credentials import Credentials
from auth.errors import StorageError
from coordinator.keeper.checkpointing import Checkpointing
from coordinator.keeper.way_chooser import WayChooser
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.speed import batch_left_s, run_speed
from coordinator.ledger.steering import read_helm
from coordinator.members.membership import Grant, Membership
from coordinator.statistics.swarm_health import write_figures
from coordinator.store.engine import Database, in_one_sentence, log_trouble
from peer.reporting.metrics import Census, RoundTally
from peer.swarm.swarm import Swarm

logger = logging.getLogger(__name__)
TOKEN_RENEWAL_SHARE = 2 / 3


def steer(database: Database, swarm: Swarm, checkpointing: Checkpointing, chooser: WayChooser) -> None:
    """Publish operators' commands to the swarm and follow them; once the run has ended, write a checkpoint."""
    with log_trouble("operators' commands are not followed"):
        helm = read_helm(database)
        swarm.steer(helm.beacon(swarm.step))
        checkpointing.every_steps = helm.at(swarm.step).checkpoint_every
        if not swarm.has_ended:
            chooser.look(helm, swarm.step, swarm.slow_lines)
        else:
            checkpointing.write_if_due(stopping=True)


class StatusWriter:
    """A writer of the swarm's status, and of counts of rounds and peers when they change."""

    def __init__(self, database: Database, swarm: Swarm, clock: Callable[[], float]) -> None:
        self._database, self._swarm, self._clock = database, swarm, clock
        self._figures: tuple[RoundTally, Census, int | None] | None = None  # last written counts

    def write(self) -> None:
        """Write the status, and the counts if they have changed."""
        swarm, progress = self._swarm, self._swarm.progress()
        with log_trouble("the swarm's status is not written"):
            speed = run_speed(self._database, self._clock())
            write_swarm_status(
                self._database,
                step=progress.step,
                samples_accumulated=progress.swarm_samples,
                target_batch_size=progress.target_batch_size,
                peers=progress.peers,
                samples_per_second=speed,
                eta_s=batch_left_s(progress.swarm_samples, progress.target_batch_size, speed),
                addresses=swarm.addresses,
                now=swarm.heard_at,
            )
            figures = swarm.rounds, swarm.census, swarm.missing_auxiliaries
            if figures != self._figures:
                write_figures(self._database, *figures)
                self._figures = figures


def grant(membership: Membership, credentials: Credentials, run: str) -> Grant:
    """Admit the keeper's device to the run, and issue its token."""
    key = credentials.device_key
    return membership.grant_keeper(key.public_key, key.receipt_key(run).pseudonym)


def renew(membership: Membership, credentials: Credentials, clock: Callable[[], float]) -> None:
    """Renew the token after two thirds of its lifetime; always update the revocation list.

    A storage error is only logged: this disk may be full while the database still works.
    """
    try:
        with in_one_sentence():
            token = credentials.access_token(clock())
            if clock() > token.issued_at + TOKEN_RENEWAL_SHARE * (token.expires_at - token.issued_at):
                credentials.store_token(grant(membership, credentials, token.run).token_jwt)
            credentials.store_revocations(membership.revocations_jwt())
    except StorageError as error:
        logger.error("the keeper's token and revocations are not renewed: %s", error)
