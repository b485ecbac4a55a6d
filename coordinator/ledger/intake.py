"""Intake of reports: many in one transaction, with the same results as one after the other.

Each report is looked at in the order of arrival, with the changes by those before it; the rows that they all need are
read once, and each of their steps is counted once, at the end. Everything here works inside the ledger's transaction,
which holds the locks of all these steps: so nothing is counted twice, even if another replica records at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, insert, select, tuple_
from sqlalchemy.orm import Session

from coordinator.ledger.counting import count_step
from coordinator.ledger.plausibility import Facts, implausibility, is_ahead, step_horizon
from coordinator.ledger.receipts import take_receipt
from coordinator.ledger.shares import count_losses, count_refused, reports_came
from coordinator.ledger.steering import target_batch_size_at
from coordinator.store.eras import current_era, last_counting_step
from coordinator.store.locks import Lock, all_for_oneself, beside_others
from coordinator.store.models import Device, Report, Step, SwarmStatus
from coordinator.store.refusals import add_refusal
from peer.config.run import RunConfig
from peer.reporting.messages import StepReport


@dataclass(frozen=True)
class Delivery:
    """A report as a session brings it."""

    device_id: str
    session_id: str | None
    seq: int  # unique for the device
    era: int
    report: StepReport
    completed_at: float  # Unix seconds, by the peer's clock

    @property
    def number(self) -> tuple[str, int]:
        """What tells that it has come before."""
        return self.device_id, self.seq

    @property
    def place(self) -> tuple[str, int, int]:
        """What a device reports once."""
        return self.device_id, self.era, self.report.step


@dataclass(frozen=True)
class Verdict:
    """Whether a report counts; a refused one is not to be sent again, unless it is only ahead of what is known."""

    accepted: bool
    reason: str = ""
    ahead: bool = False


def record_reports(session: Session, config: RunConfig, deliveries: Sequence[Delivery], now: float) -> list[Verdict]:
    """Count reports, put them off or refuse them and say why; one that comes again is accepted again, counted once."""
    beside_others(session, Lock.ERA)
    all_for_oneself(session, Lock.COUNTING, {delivery.report.step for delivery in deliveries})
    intake = _Intake(session, config, deliveries, now)
    verdicts = [intake.take(delivery) for delivery in deliveries]
    intake.finish()
    return verdicts


def target_batch_size(session: Session, config: RunConfig, step: int) -> int:
    """What global step number `step` needed: that of the phase in force before it, or what an operator set."""
    steered = target_batch_size_at(session, step - 1)
    return steered or config.at_step(step - 1).averaging.target_batch_size


class _Intake:
    """What is known while the reports of one transaction are taken in."""

    def __init__(self, session: Session, config: RunConfig, deliveries: Sequence[Delivery], now: float) -> None:
        self._session, self._config, self._now = session, config, now
        self._era = current_era(session)
        self._status = session.scalar(select(SwarmStatus))
        self._last_step = 0 if self._status else session.scalar(select(func.max(Step.step))) or 0
        joined = select(Device.id, Device.created_at).where(Device.id.in_({each.device_id for each in deliveries}))
        self._joined_at: dict[str, float] = {row.id: row.created_at for row in session.execute(joined)}
        self._numbers = _found(session, (Report.device_id, Report.seq), {each.number for each in deliveries})
        columns = (Report.device_id, Report.era, Report.step)
        self._places = _found(session, columns, {each.place for each in deliveries})
        self._targets: dict[int, int] = {}
        self._ends: dict[int, int | None] = {}  # of eras: the last step that counts
        self._reached_steps: dict[int, int] = {}  # of eras before the current one
        self._rows: list[dict[str, Any]] = []
        self._to_count: set[int] = set()

    def take(self, delivery: Delivery) -> Verdict:
        """One report's verdict."""
        if delivery.number in self._numbers:
            return Verdict(accepted=True)
        report, facts = delivery.report, self._facts(delivery)
        reason = implausibility(delivery.seq, delivery.era, delivery.completed_at, report, facts)
        if reason is None and is_ahead(report.step, delivery.era, facts):  # nothing is kept of it: it waits at the peer
            known = f"step {report.step} is ahead of the keeper, which knows those up to {facts.horizon_step}"
            return Verdict(accepted=False, reason=known, ahead=True)
        if reason is not None and not facts.reported_already:
            count_refused(
                self._session, delivery.device_id, report.step, report.samples, facts.target_batch_size, self._now
            )
            return self._refuse(delivery, reason)
        self._to_count.add(report.step)
        if report.receipt:
            run = self._config.run.name
            take_receipt(self._session, run, delivery.device_id, report.step, report.receipt, self._now)
        if reason is not None:
            return self._refuse(delivery, reason)
        self._keep(delivery)
        return Verdict(accepted=True)

    def _refuse(self, delivery: Delivery, reason: str) -> Verdict:
        add_refusal(self._session, "report", "implausible", reason, delivery.device_id, self._now)
        return Verdict(accepted=False, reason=reason)

    def finish(self) -> None:
        """Store what was taken, and count it."""
        if self._rows:
            self._session.execute(insert(Report), self._rows)
            reports_came(self._session, self._rows)
        for step in sorted(self._to_count):
            count_step(self._session, step, self._targets[step], self._config.membership.newcomer_share, self._now)

    def _keep(self, delivery: Delivery) -> None:
        undone_after = self._undone_after(delivery.era)
        superseded = undone_after is not None and delivery.report.step > undone_after
        row = _columns(delivery, self._joined_at[delivery.device_id], self._now) | {"superseded": superseded}
        self._rows.append(row)
        count_losses(self._session, delivery.device_id, delivery.report.step, delivery.report.lost, row["completed_at"])
        self._numbers.add(delivery.number)
        self._places.add(delivery.place)
        if not superseded:
            self._last_step = max(self._last_step, delivery.report.step)
        if delivery.era in self._reached_steps:
            self._reached_steps[delivery.era] = max(self._reached_steps[delivery.era], delivery.report.step)

    def _facts(self, delivery: Delivery) -> Facts:
        return Facts(
            current_era=self._era,
            horizon_step=self._horizon(delivery.era),
            target_batch_size=self._target(delivery.report.step),
            reported_already=delivery.place in self._places,
        )

    def _horizon(self, era: int) -> int:
        """The highest step that can have been completed in this era by now."""
        if self._status is not None:
            horizon = step_horizon(self._status.step, self._now - self._status.updated_at)
        else:  # no keeper has written yet: the ledger's own last step must do
            horizon = step_horizon(self._last_step, 0.0)
        if era < self._era:  # it went further than where the swarm is now
            horizon = max(horizon, step_horizon(self._reached(era), 0.0))
        return horizon

    def _reached(self, era: int) -> int:
        """The last step that was reported of a past era."""
        if era not in self._reached_steps:
            highest = self._session.scalar(select(func.max(Report.step)).where(Report.era == era))
            self._reached_steps[era] = highest or 0
        return self._reached_steps[era]

    def _target(self, step: int) -> int:
        if step not in self._targets:
            self._targets[step] = target_batch_size(self._session, self._config, step)
        return self._targets[step]

    def _undone_after(self, era: int) -> int | None:
        if era not in self._ends:
            self._ends[era] = last_counting_step(self._session, era)
        return self._ends[era]


def _found(session: Session, columns: Sequence[Any], wanted: set[Any]) -> set[Any]:
    """Those of `wanted` for which there is a report."""
    query = select(*columns).where(tuple_(*columns).in_(sorted(wanted)))
    return {tuple(row) for row in session.execute(query)}


def _columns(delivery: Delivery, joined_at: float, now: float) -> dict[str, Any]:
    """A row; receipt and losses go elsewhere."""
    columns = asdict(delivery.report) | {
        "device_id": delivery.device_id,
        "session_id": delivery.session_id,
        "seq": delivery.seq,
        "era": delivery.era,
        "completed_at": min(max(delivery.completed_at, joined_at), now),  # by the peer's clock, which may be wrong
        "received_at": now,
    }
    del columns["receipt"], columns["lost"]
    return columns
