"""The ledger: reports become steps and contributions, each report counted once and as far as receipts confirm it.

A step's sums are kept up to date in the transaction that stores a report or a receipt, so reading them costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.orm import Session

from coordinator.counting import count_step, one_at_a_time
from coordinator.eras import begin_era, current_era, last_counting_step
from coordinator.membership import KEEPER
from coordinator.plausibility import Facts, implausibility, step_horizon
from coordinator.presence import is_online
from coordinator.receipts import take_receipt
from coordinator.refusals import add_refusal
from coordinator.store.engine import Sessions
from coordinator.store.models import Device, Member, Receipt, Report, Step, SwarmStatus, Validation
from coordinator.store.models import Session as Stay
from peer.messages import StepReport
from peer.run_config import RunConfig

SETTLED_S = 30.0  # after a step was completed its reports are in; peers that were cut off deliver theirs later


@dataclass(frozen=True)
class Verdict:
    """Whether a report counts; a refused one is not to be sent again."""

    accepted: bool
    reason: str = ""


@dataclass(frozen=True)
class StepRow:
    """One global step, as far as it is reported."""

    step: int
    samples: int
    loss: float | None  # mean over samples; None while nobody has reported a loss
    devices: int
    completed_at: float
    target_batch_size: int


@dataclass(frozen=True)
class Contribution:
    """What a member has given so far."""

    member: str
    samples: int  # that receipts confirm
    devices: int
    online: int  # of these devices, now
    last_seen_at: float | None
    samples_per_second: float  # of the devices online
    elapsed_s: float  # that its devices trained, each counted; those steps that count
    data_wait_s: float  # of it, waiting for data
    averaged_bytes: int  # of others' numbers, in all steps, as the devices themselves say
    pending_samples: int = 0  # claimed, and neither confirmed nor denied by any receipt


def data_wait_share(contributions: Sequence[Contribution]) -> float | None:
    """Which part of the time that these have trained they waited for data; None before there is any."""
    elapsed_s = sum(row.elapsed_s for row in contributions)
    return min(1.0, sum(row.data_wait_s for row in contributions) / elapsed_s) if elapsed_s else None


class Ledger:
    """Reports in, steps and contributions out."""

    def __init__(self, sessions: Sessions, config: RunConfig, clock: Callable[[], float] = time.time) -> None:
        self._sessions = sessions
        self._config = config
        self._clock = clock

    def record(
        self, device_id: str, session_id: str | None, seq: int, era: int, report: StepReport, completed_at: float
    ) -> Verdict:
        """Count a report, or refuse it and say why; a report that comes again is accepted again and counted once."""

        def enter(session: Session) -> Verdict:
            now = self._clock()
            if session.scalar(select(Report.id).where(Report.device_id == device_id, Report.seq == seq)):
                return Verdict(accepted=True)
            one_at_a_time(session, report.step)
            facts = self._facts(session, device_id, era, report.step, now)
            reason = implausibility(seq, era, completed_at, report, facts)
            if reason is not None and not facts.reported_already:
                add_refusal(session, "report", "implausible", reason, device_id, now)
                return Verdict(accepted=False, reason=reason)
            if report.receipt:
                take_receipt(session, self._config.run.name, device_id, report.step, report.receipt, now)
            if reason is None:
                undone_after = last_counting_step(session, era)
                row = Report(
                    device_id=device_id,
                    session_id=session_id,
                    seq=seq,
                    era=era,
                    completed_at=min(completed_at, now),  # by the peer's clock, which may be ahead
                    received_at=now,
                    superseded=undone_after is not None and report.step > undone_after,
                    **_columns(report),
                )
                session.add(row)
                session.flush()
            else:
                add_refusal(session, "report", "implausible", reason, device_id, now)
            count_step(session, report.step, self._target_batch_size(report.step), now)
            return Verdict(accepted=reason is None, reason=reason or "")

        return self._sessions.transact(enter)

    def take_receipt(self, device_id: str, step: int, receipt: str) -> None:
        """Keep what a device, the keeper's, received at this step, and count by it; a bad one is recorded."""

        def take(session: Session) -> None:
            one_at_a_time(session, step)
            now = self._clock()
            if take_receipt(session, self._config.run.name, device_id, step, receipt, now):
                count_step(session, step, self._target_batch_size(step), now)

        self._sessions.transact(take)

    def roll_back(self, step: int) -> int:
        """The swarm returned to the checkpoint of `step`: undo all later steps and begin a new era; returns its number.

        Reports of the undone steps stay, marked, and so will those that have yet to arrive. Their receipts, and what
        held-out samples said of undone checkpoints, go.
        """

        def undo(session: Session) -> int:
            era = begin_era(session, after_step=step, now=self._clock())
            session.execute(update(Report).where(Report.step > step).values(superseded=True))
            session.execute(delete(Step).where(Step.step > step))
            session.execute(delete(Receipt).where(Receipt.step > step))
            session.execute(delete(Validation).where(Validation.step > step))
            session.execute(update(SwarmStatus).values(era=era, step=step, samples_accumulated=0))
            return era

        return self._sessions.transact(undo)

    def current_era(self) -> int:
        """How often the swarm has returned to a checkpoint."""
        with self._sessions() as session:
            return current_era(session)

    def last_step(self) -> int:
        """The highest step that anybody reported; 0 before the first."""
        with self._sessions() as session:
            return session.scalar(select(func.max(Step.step))) or 0

    def steps(self, after: int = 0) -> list[StepRow]:
        """All steps above `after`, in order."""
        with self._sessions() as session:
            return [
                StepRow(
                    step=row.step,
                    samples=row.samples,
                    loss=row.loss_sum / row.loss_samples if row.loss_samples else None,
                    devices=row.devices,
                    completed_at=row.completed_at,
                    target_batch_size=row.target_batch_size,
                )
                for row in session.scalars(select(Step).where(Step.step > after).order_by(Step.step))
            ]

    def contributions(self) -> list[Contribution]:
        """Every member with a device, the largest contribution first, bytes after samples; without the keeper."""
        now = self._clock()
        pending = case((Report.counted.is_(None), Report.samples), else_=0)
        counted = func.coalesce(Report.counted, 0)
        summed = (counted, Report.elapsed_s, Report.data_wait_s, Report.averaged_bytes, pending)
        per_member = select(Member.name).join(Device.member).where(Device.role != KEEPER).group_by(Member.name)
        given = (
            per_member.add_columns(*map(func.sum, summed))
            .join(Report, Report.device_id == Device.id)
            .where(Report.superseded.is_(False))
        )
        present = per_member.add_columns(
            func.count(Device.id.distinct()),
            func.count(Device.id.distinct()).filter(is_online(now)),
            func.max(Stay.last_seen_at),
            func.sum(Stay.samples_per_second).filter(is_online(now)),
        ).outerjoin(Stay, Stay.device_id == Device.id)
        with self._sessions() as session:
            gifts = {row[0]: row[1:] for row in session.execute(given)}
            stays = {row[0]: row[1:] for row in session.execute(present)}
        found = []
        for name, (devices, online, last_seen_at, rate) in stays.items():
            samples, elapsed_s, data_wait_s, averaged_bytes, unconfirmed = gifts.get(name, (0, 0.0, 0.0, 0, 0))
            found.append(
                Contribution(
                    member=name,
                    samples=int(samples),
                    devices=devices,
                    online=online,
                    last_seen_at=last_seen_at,
                    samples_per_second=rate or 0.0,
                    elapsed_s=elapsed_s,
                    data_wait_s=data_wait_s,
                    averaged_bytes=int(averaged_bytes),
                    pending_samples=int(unconfirmed),
                )
            )
        return sorted(found, key=lambda row: (-row.samples, -row.averaged_bytes, row.member))

    def standing(self, member: str) -> tuple[int, int, int]:
        """A member's samples, rank (from 1; equals share one) and the number of members, for the terminal panel."""
        samples = {row.member: row.samples for row in self.contributions()}
        own = samples.get(member, 0)
        return own, 1 + sum(other > own for other in samples.values()), len(samples)

    def _facts(self, session: Session, device_id: str, era: int, step: int, now: float) -> Facts:
        status = session.scalar(select(SwarmStatus))
        if status is not None:
            horizon = step_horizon(status.step, now - status.updated_at)
        else:  # no keeper has written yet: the ledger's own last step must do
            horizon = step_horizon(session.scalar(select(func.max(Step.step))) or 0, 0.0)
        same_step = select(Report.id).where(Report.device_id == device_id, Report.era == era, Report.step == step)
        return Facts(
            current_era=current_era(session),
            horizon_step=horizon,
            target_batch_size=self._target_batch_size(step),
            reported_already=session.scalar(same_step) is not None,
        )

    def _target_batch_size(self, step: int) -> int:
        """What global step number `step` needed: that of the phase in force before it was taken."""
        return self._config.at_step(step - 1).averaging.target_batch_size


def _columns(report: StepReport) -> dict[str, Any]:
    """The report's own columns; its receipt goes elsewhere."""
    columns = asdict(report)
    del columns["receipt"]
    return columns
