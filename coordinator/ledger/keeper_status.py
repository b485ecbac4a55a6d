"""The status of the swarm, a row that the keeper updates about once a second for the service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.store.engine import Database
from coordinator.store.eras import current_era
from coordinator.store.models import SwarmStatus
from coordinator.store.notify import Topic, tell

KEEPER_SILENT_S = 120.0  # silence after which the keeper is reported down; longer than a round or a slow restart
_STATUS_ROW = 1


@dataclass(frozen=True)
class KeeperView:
    """The status of the swarm, as seen by the keeper."""

    step: int  # number of completed global steps
    era: int
    samples_accumulated: int  # samples accumulated for the next global step
    target_batch_size: int
    peers: int
    samples_per_second: float  # speed of the run (`coordinator.ledger.speed`)
    eta_s: float | None  # seconds until the batch is full at that speed
    addresses: tuple[str, ...]  # libp2p multiaddresses of the keeper
    updated_at: float  # time of the last response from the keeper's p2p daemon


def write_swarm_status(
    database: Database,
    *,
    step: int,
    samples_accumulated: int,
    target_batch_size: int,
    peers: int,
    samples_per_second: float,
    eta_s: float | None,
    addresses: Sequence[str],
    now: float,
) -> None:
    """Replace the status of the swarm."""
    with database.begin() as session:
        session.merge(
            SwarmStatus(
                id=_STATUS_ROW,
                step=step,
                era=current_era(session),
                samples_accumulated=samples_accumulated,
                target_batch_size=target_batch_size,
                peers=peers,
                samples_per_second=samples_per_second,
                eta_s=eta_s,
                addresses=json.dumps(list(addresses)),
                updated_at=now,
            )
        )
        tell(session, Topic.PROGRESS)


def tell_keeper_addresses(database: Database, addresses: Sequence[str]) -> bool:
    """Store a restarted keeper's addresses before its first status. Return whether they changed."""
    with database.begin() as session:
        row = session.get(SwarmStatus, _STATUS_ROW)
        if row is None:
            return False
        before, row.addresses = json.loads(row.addresses), json.dumps(list(addresses))
        return set(before) != set(addresses)


def read_swarm_status(database: Database) -> KeeperView | None:
    """Return the latest status of the swarm, or None if the keeper has not written any."""
    with database() as session:
        row = session.get(SwarmStatus, _STATUS_ROW)
        if row is None:
            return None
        return KeeperView(
            step=row.step,
            era=row.era,
            samples_accumulated=row.samples_accumulated,
            target_batch_size=row.target_batch_size,
            peers=row.peers,
            samples_per_second=row.samples_per_second,
            eta_s=row.eta_s,
            addresses=tuple(json.loads(row.addresses)),
            updated_at=row.updated_at,
        )
