"""The ledger, which adds the confirmed samples of reports to steps and contributions.

This module writes to the database; `coordinator.ledger.judgement` makes the decisions, and
`coordinator.ledger.reading` does the reads. The transaction that stores a report or a receipt also
updates all dependent sums: counted samples, sums of the step, and the device's daily sums and
lost samples. The order of arrival is therefore irrelevant, and reading the sums is cheap.

Lost samples were computed but not used in any step. They are summed by device, day and cause, for
display to members. Devices report lost samples with their step reports, or separately when leaving.
The coordinator adds the samples of rejected reports and of revoked or quarantined devices. Lost
samples give no credit, so there is no incentive to exaggerate them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, cast

from sqlalchemy import BigInteger, Table, case, delete, func, insert, literal, select, tuple_, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from coordinator.ledger.judgement import (
    Delivery,
    Facts,
    Judgement,
    ReportOutcome,
    ReportVerdict,
    SampleClaim,
    count,
    judge,
    judge_lost,
    step_horizon,
    step_sums,
)
from coordinator.ledger.reading import LedgerReader
from coordinator.ledger.receipts import kept_receipts, take_receipt
from coordinator.ledger.steering import helm_of, undo_choices
from coordinator.store.engine import Database
from coordinator.store.eras import begin_era, current_era, last_counting_step
from coordinator.store.ledger_models import DAY_S, DailyShare, LossMark, LostSamples, day_of
from coordinator.store.locks import Lock, add_up, all_for_oneself, beside_others, is_postgresql, one_at_a_time
from coordinator.store.models import (
    Checkpoint,
    Device,
    DeviceSession,
    Evaluation,
    Receipt,
    Report,
    Step,
    SwarmStatus,
    Validation,
)
from coordinator.store.notify import Topic, tell
from coordinator.store.refusals import add_refusal
from peer.config.run import RunConfig
from peer.reporting.messages import Lost, LostCause

_REPORTS, _DEVICES = cast(Table, Report.__table__), cast(Table, Device.__table__)
_AMOUNTS = ("reports", "claimed", "counted", "pending", "undone", "elapsed_s", "data_wait_s", "averaged_bytes")


class Ledger(LedgerReader):
    """A ledger that records reports and receipts as steps and contributions."""

    def __init__(self, database: Database, config: RunConfig, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database, clock)
        self._config = config

    def record_all(self, deliveries: Sequence[Delivery]) -> list[ReportVerdict | Exception]:
        """Count or reject each report, in one transaction; count retransmitted reports once.

        If recording a report fails, its result is the exception; other reports are not affected.
        """

        def record(session: Session) -> list[ReportVerdict]:
            beside_others(session, Lock.ERA)
            all_for_oneself(session, Lock.COUNTING, {delivery.report.step for delivery in deliveries})
            return _Intake(session, self._config, deliveries, self._clock()).record()

        try:
            return list(self._database.transact(record))
        except OperationalError as error:  # the database failed, so smaller batches would fail too
            return [error] * len(deliveries)
        except Exception as error:  # noqa: BLE001 - fault boundary: smaller batches isolate the bad report
            if len(deliveries) == 1:
                return [error]
            middle = len(deliveries) // 2
            return [*self.record_all(deliveries[:middle]), *self.record_all(deliveries[middle:])]

    def record_lost(self, device_id: str, seq: int, lost: Lost, at: float) -> str:
        """Record losses sent outside reports, once per `seq`. Return a rejection reason or ""."""

        def record(session: Session) -> str:
            now = self._clock()
            device = session.get_one(Device, device_id, with_for_update=True)
            mark = session.get(LossMark, device_id)
            if mark is not None and seq <= mark.seq:
                return ""
            session.merge(LossMark(device_id=device_id, seq=seq))
            reason = judge_lost(lost, helm_of(session).batch_after(lost.step - 1, self._config))
            if reason:
                add_refusal(session, "report", "implausible", reason, device_id, now)
            else:
                count_losses(session, device_id, lost.step, lost.by_cause, min(now, max(at, device.created_at)))
            return reason

        return self._database.transact(record)

    def take_receipt(self, device_id: str, step: int, receipt: str) -> None:
        """Store the keeper's receipt for a step and recount the step; record an error as a refusal."""

        def take(session: Session) -> None:
            beside_others(session, Lock.ERA)
            one_at_a_time(session, Lock.COUNTING, step)
            now = self._clock()
            if take_receipt(session, self._config.run.name, device_id, step, receipt, now):
                _count_step(session, step, helm_of(session).batch_after(step - 1, self._config))

        self._database.transact(take)

    def roll_back(self, step: int) -> int:
        """Undo all steps after `step`, on a rewind to that step's checkpoint. Return the new era.

        Reports of undone steps, including late ones, are kept and marked as undone. Receipts of
        undone steps, undone checkpoints and their evaluation results are deleted.
        """

        def undo(session: Session) -> int:
            one_at_a_time(session, Lock.ERA)
            undo_reports(session, step)
            undo_choices(session, step)
            era = begin_era(session, after_step=step, now=self._clock())
            for table in (Step, Receipt, Validation, Evaluation, Checkpoint):
                session.execute(delete(table).where(table.step > step))
            session.execute(update(SwarmStatus).values(era=era, step=step, samples_accumulated=0))
            tell(session, Topic.PROGRESS)
            return era

        return self._database.transact(undo)


class _Intake:
    """A batch of reports in one transaction, with the same result as one transaction per report.

    Reports are judged in order of arrival, each in light of the earlier ones. Shared rows are read
    once, and each step is counted once, at the end. The transaction locks all affected steps, so
    concurrent replicas do not count samples twice.
    """

    def __init__(self, session: Session, config: RunConfig, deliveries: Sequence[Delivery], now: float) -> None:
        self._session, self._config, self._deliveries, self._now = session, config, deliveries, now
        helm, of_era = helm_of(session), select(func.max(Report.step))
        self._target = cache(lambda step: helm.batch_after(step - 1, config))
        self._era = current_era(session)
        self._last_counting_step = cache(lambda era: last_counting_step(session, era))
        self._last_reported = cache(lambda era: session.scalar(of_era.where(Report.era == era)) or 0)
        self._last_step = cache(lambda: session.scalar(select(func.max(Step.step))) or 0)
        self._status = session.scalar(select(SwarmStatus))
        joined = select(Device.id, Device.created_at).where(Device.id.in_({each.device_id for each in deliveries}))
        self._joined_at: dict[str, float] = dict(session.execute(joined).all())
        self._numbers = self._found((Report.device_id, Report.seq), {each.number for each in deliveries})
        self._places = self._found((Report.device_id, Report.era, Report.step), {each.place for each in deliveries})
        self._rows: list[dict[str, Any]] = []  # report rows to insert
        self._to_count: set[int] = set()

    def record(self) -> list[ReportVerdict]:
        """Store the plausible reports and count their steps. Return the verdicts in order."""
        verdicts = [self._take(delivery) for delivery in self._deliveries]
        if self._rows:
            enter_reports(self._session, self._rows)
        for step in sorted(self._to_count):
            _count_step(self._session, step, self._target(step))
        return verdicts

    def _found(self, columns: Sequence[Any], wanted: set[Any]) -> set[Any]:
        """Return the keys in `wanted` for which the ledger already has a report."""
        query = select(*columns).where(tuple_(*columns).in_(sorted(wanted)))
        return {tuple(row) for row in self._session.execute(query)}

    def _take(self, delivery: Delivery) -> ReportVerdict:
        report = delivery.report
        judgement = judge(delivery, self._facts(delivery))
        count_losses(self._session, delivery.device_id, max(0, report.step), judgement.lost, judgement.at)
        if judgement.brings_receipt:
            self._to_count.add(report.step)
            if report.receipt:
                run = self._config.run.name
                take_receipt(self._session, run, delivery.device_id, report.step, report.receipt, self._now)
        if judgement.stored:
            self._rows.append(self._row(delivery, judgement))
            self._numbers.add(delivery.number)
            self._places.add(delivery.place)
        elif judgement.refused:
            add_refusal(self._session, "report", "implausible", judgement.reason, delivery.device_id, self._now)
        return judgement.verdict

    def _facts(self, delivery: Delivery) -> Facts:
        return Facts(
            now=self._now,
            joined_at=self._joined_at[delivery.device_id],
            current_era=self._era,
            last_counting_step=self._last_counting_step(delivery.report.era),
            horizon_step=self._horizon(delivery.report.era),
            target_batch_size=self._target(delivery.report.step),
            known=delivery.number in self._numbers,
            reported_already=delivery.place in self._places,
        )

    def _horizon(self, era: int) -> int:
        """Return the highest step that an era may have completed by now."""
        if self._status is not None:
            horizon = step_horizon(self._status.step, self._now - self._status.updated_at)
        else:  # until the keeper writes a status, use the ledger's last step
            counting = (row["step"] for row in self._rows if not row["superseded"])
            horizon = step_horizon(max([self._last_step(), *counting]), 0.0)
        if era < self._era:  # an earlier era may have more steps than the current one
            reported = (row["step"] for row in self._rows if row["era"] == era)
            horizon = max(horizon, step_horizon(max([self._last_reported(era), *reported]), 0.0))
        return horizon

    def _row(self, delivery: Delivery, judgement: Judgement) -> dict[str, Any]:
        """Return the table row of a report; receipts and lost samples have their own tables."""
        claims = {name: value for name, value in asdict(delivery.report).items() if name in _REPORTS.c}
        return claims | {
            "device_id": delivery.device_id,
            "session_id": delivery.session_id,
            "seq": delivery.seq,
            "completed_at": judgement.at,
            "received_at": self._now,
            "superseded": judgement.outcome is ReportOutcome.UNDONE,
        }


def _count_step(session: Session, step: int, target_batch_size: int) -> None:
    """Count the reports of a step and update its sums; do nothing if it has no reports."""
    receipts, claims = kept_receipts(session, step), _claims(session, step)
    if not claims:
        return
    counted = count(claims, receipts)
    if changed := [claim for claim in claims if counted[claim.report_id] != claim.counted]:
        _recount(session, changed, counted)
    before = session.get(Step, step - 1)
    loss_before = before.loss_sum / before.loss_samples if before is not None and before.loss_samples else None
    row = session.get(Step, step)
    if row is None:
        row = Step(step=step, era=claims[0].era, target_batch_size=target_batch_size)
        session.add(row)
    for name, value in step_sums(claims, counted, loss_before)._asdict().items():
        setattr(row, name, value)
    session.flush()
    tell(session, Topic.PROGRESS)


def _claims(session: Session, step: int) -> list[SampleClaim]:
    """Return the valid reports of a step in order of arrival."""
    table = _REPORTS.join(_DEVICES, _DEVICES.c.id == _REPORTS.c.device_id)
    named = {"report_id": _REPORTS.c.id, "device_number": _DEVICES.c.number, "member_id": _DEVICES.c.member_id}
    columns = [named[name] if name in named else _REPORTS.c[name] for name in SampleClaim._fields]
    counting = select(*columns).select_from(table).where(_REPORTS.c.step == step, _REPORTS.c.superseded.is_(False))
    # The ORM is bypassed because it is slow for thousands of rows.
    return [SampleClaim._make(row) for row in session.connection().execute(counting.order_by(_REPORTS.c.id))]


def _recount(session: Session, changed: Sequence[SampleClaim], counted: Mapping[int, int | None]) -> None:
    """Store the new counts of reports, and adjust the daily sums of their devices."""
    session.execute(update(Report), [{"id": each.report_id, "counted": counted[each.report_id]} for each in changed])
    changes = []
    for claim in changed:
        before, after = claim.counted, counted[claim.report_id]
        pending = claim.samples * ((after is None) - (before is None))
        amounts = {"counted": (after or 0) - (before or 0), "pending": pending}
        changes.append((claim.device_id, day_of(claim.completed_at), amounts))
    _add_to_days(session, changes)


def enter_reports(session: Session, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert reports, given as table rows, and add them to the devices' daily sums."""
    session.execute(insert(Report), rows)
    _add_to_days(session, ((row["device_id"], day_of(row["completed_at"]), _amounts(row)) for row in rows))


def _amounts(report: Mapping[str, Any]) -> dict[str, float]:
    if report["superseded"]:
        return {"undone": report["samples"]}
    counted = report.get("counted")
    return {
        "reports": 1,
        "claimed": report["samples"],
        "counted": counted or 0,
        "pending": report["samples"] if counted is None else 0,
        "elapsed_s": report["elapsed_s"],
        "data_wait_s": report["data_wait_s"],
        "averaged_bytes": report["averaged_bytes"],
    }


def undo_reports(session: Session, after_step: int) -> None:
    """Mark the reports of all steps after `after_step` as undone, and subtract them from the daily sums."""
    days, later = Report.completed_at / literal(DAY_S), Report.step > after_step
    day = (func.floor(days) if is_postgresql(session) else days).cast(BigInteger)  # in SQLite, the cast truncates
    counted = {
        "reports": func.count(),
        "claimed": func.sum(Report.samples),
        "counted": func.sum(func.coalesce(Report.counted, 0)),
        "pending": func.sum(case((Report.counted.is_(None), Report.samples), else_=0)),
        **{name: func.sum(_REPORTS.c[name]) for name in ("elapsed_s", "data_wait_s", "averaged_bytes")},
    }
    query = (
        select(Report.device_id, day, func.sum(Report.samples), *(-amount for amount in counted.values()))
        .where(later, Report.superseded.is_(False))
        .group_by(Report.device_id, day)
    )
    changes = [
        (device_id, on, dict(zip(("undone", *counted), amounts, strict=True)))
        for device_id, on, *amounts in session.execute(query)
    ]
    _add_to_days(session, changes)
    session.execute(update(Report).where(later).values(superseded=True))


def _add_to_days(session: Session, changes: Iterable[tuple[str, int, Mapping[str, float]]]) -> None:
    """Add amounts to the daily sums, in sorted order to prevent deadlocks between writers."""
    sums: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: dict.fromkeys(_AMOUNTS, 0))
    for device_id, day, amounts in changes:
        row = sums[device_id, day]
        for name, amount in amounts.items():
            row[name] += amount
    rows = [{"device_id": device_id, "day": day, **amounts} for (device_id, day), amounts in sorted(sums.items())]
    add_up(session, DailyShare, ("device_id", "day"), rows)


def count_losses(session: Session, device_id: str, step: int, by_cause: Mapping[str, int], at: float) -> None:
    """Add lost samples, by cause, to a device's sums for the day of `at` (Unix time)."""
    rows = [
        {"device_id": device_id, "day": day_of(at), "cause": cause, "samples": samples, "times": 1, "last_step": step}
        for cause, samples in sorted(by_cause.items())
        if samples > 0
    ]
    add_up(session, LostSamples, ("device_id", "day", "cause"), rows, newest={"last_step"})


def count_cut_off(session: Session, device: Device, now: float) -> None:
    """Record the last reported unused samples of a revoked or quarantined device as lost."""
    newest = (
        select(DeviceSession)
        .where(DeviceSession.device_id == device.id, DeviceSession.ended_at.is_(None))
        .order_by(DeviceSession.started_at.desc())
    )
    stay = session.scalar(newest.limit(1))
    if stay is not None:
        count_losses(session, device.id, stay.step + 1, {LostCause.QUARANTINE.value: stay.own_samples}, now)
