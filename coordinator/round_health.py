"""How well the newest global steps went: what was averaged in, how long that took, which samples were lost to what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.ledger import StepRow
from coordinator.store.models import Report


@dataclass(frozen=True)
class RoundHealth:
    """Of some steps, the newest of which reports are in."""

    steps: int = 0
    batch_share: float | None = None  # samples averaged in over the target batches; None before there is a step
    averaging_s: float | None = None  # that averaging took, the mean over all reports
    lost_samples: Mapping[str, int] = field(default_factory=dict)  # by the peers' own reason


def read_health(session: Session, settled: Sequence[StepRow]) -> RoundHealth:
    """The health of these steps."""
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
