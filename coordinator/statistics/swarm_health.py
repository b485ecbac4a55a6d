"""Health of the swarm, for metrics and the overview: rounds, peers, suspicions and recent steps.

The keeper writes its counts when they change; the service reads them for each snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.ledger.reading import StepRow
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device, Report, StoredSuspicion
from coordinator.store.service_models import SwarmFigures
from peer.reporting.metrics import Census, RoundTally

_ROW = 1


@dataclass(frozen=True)
class RoundHealth:
    """Averaging statistics of fully reported steps: share of the batch, time, and lost samples."""

    steps: int = 0
    batch_share: float | None = None  # averaged samples divided by the sum of target batch sizes; None without steps
    averaging_s: float | None = None  # mean averaging time over all reports
    lost_samples: Mapping[str, int] = field(default_factory=dict)  # number of lost samples by reported reason


def read_health(session: Session, settled: Sequence[StepRow]) -> RoundHealth:
    """Compute the averaging statistics of fully reported steps."""
    if not settled:
        return RoundHealth()
    within = Report.step.between(settled[0].step, settled[-1].step) & Report.superseded.is_(False)
    lost = select(Report.lost_reason, func.sum(Report.lost_samples)).where(within, Report.lost_samples > 0)
    return RoundHealth(
        steps=len(settled),
        batch_share=sum(row.samples for row in settled) / sum(max(1, row.target_batch_size) for row in settled),
        averaging_s=session.scalar(select(func.avg(Report.averaging_s)).where(within, Report.averaging_s > 0)),
        lost_samples={reason: int(samples) for reason, samples in session.execute(lost.group_by(Report.lost_reason))},
    )


@dataclass(frozen=True)
class Figures:
    """The keeper's counters and token expiry; numbers of suspicions and quarantined devices."""

    rounds: RoundTally | None = None  # averaging rounds; None before the keeper's first report
    census: Census = ()
    missing_auxiliaries: int | None = None  # further auxiliary peers that would shorten rounds; None before round 1
    keeper_token_until: float | None = None  # Unix time at which the keeper's token expires
    quarantined: int = 0  # number of quarantined devices
    suspicions: Mapping[str, int] = field(default_factory=dict)  # number of recent suspicions by kind


def read_figures(database: Database, since: float) -> Figures:
    """Read the figures; only suspicions reported after `since` (Unix time) are counted."""
    words = select(StoredSuspicion.kind, func.count()).where(StoredSuspicion.at > since).group_by(StoredSuspicion.kind)
    cut_off = select(func.count()).where(Device.quarantined_at.is_not(None), Device.revoked_at.is_(None))
    with database() as session:
        row = session.get(SwarmFigures, _ROW)
        counts = () if row is None else tuple(json.loads(row.rounds_by_duration))
        return Figures(
            rounds=None if row is None else RoundTally(row.rounds_failed, counts, row.rounds_seconds),
            census=() if row is None else tuple((role, direct, n) for role, direct, n in json.loads(row.census)),
            missing_auxiliaries=None if row is None else row.missing_auxiliaries,
            keeper_token_until=session.scalar(select(func.max(Device.token_until)).where(Device.role == KEEPER_ROLE)),
            quarantined=session.scalar(cut_off) or 0,
            suspicions=dict(session.execute(words).all()),
        )


def write_figures(database: Database, rounds: RoundTally, census: Census, missing_auxiliaries: int | None) -> None:
    """Replace the keeper's stored counters."""
    with database.begin() as session:
        session.merge(
            SwarmFigures(
                id=_ROW,
                rounds_failed=rounds.failed,
                rounds_by_duration=json.dumps(rounds.by_duration),
                rounds_seconds=rounds.seconds,
                census=json.dumps(census),
                missing_auxiliaries=missing_auxiliaries,
            )
        )
