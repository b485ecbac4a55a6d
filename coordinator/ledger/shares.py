"""Sums of what each device contributed and lost on each UTC day, updated with every change of a report.

The leaderboard, its windows, the streaks and the certificates read these few rows instead of all reports. All functions
but `record_lost` run inside their caller's transaction.

Lost samples were computed but are in no step; they are summed by device, day and cause, so that members can see why. A
device tells its own losses (`peer.reporting.messages`), with its reports or, when it leaves, apart from them. The
coordinator itself counts what it refuses or cuts off. Losses earn nothing, so there is nothing to gain by a false
claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, case, cast, func, literal, select
from sqlalchemy.orm import Session

from coordinator.ledger.plausibility import MAX_LOST_SHARE, MAX_SHARE_OF_TARGET
from coordinator.store.engine import Sessions
from coordinator.store.ledger_models import DailyShare, LossMark, LostSamples
from coordinator.store.locks import is_postgresql
from coordinator.store.models import Device, Report, Session as Stay
from coordinator.store.refusals import add_refusal
from coordinator.store.upsert import add_up
from peer.reporting.messages import Lost, LostCause

DAY_S = 86_400
_AMOUNTS = ("reports", "claimed", "counted", "pending", "undone", "elapsed_s", "data_wait_s", "averaged_bytes")


@dataclass(frozen=True)
class Recount:
    """A report of which now more counts, or less."""

    device_id: str
    completed_at: float
    claimed: int
    before: int | None  # as receipts confirmed; None: none said anything
    after: int | None


def day_of(at: float) -> int:
    """The UTC day of a time in Unix seconds, as days since 1970-01-01."""
    return int(at // DAY_S)


def reports_came(session: Session, reports: Iterable[Mapping[str, Any]]) -> None:
    """Reports (columns of the table) were entered; nothing of them is confirmed yet."""
    sums: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for report in reports:
        of_day = sums[report["device_id"], day_of(report["completed_at"])]
        for name, amount in _claimed(report).items():
            of_day[name] += amount
    _add(session, [_share(*key, amounts) for key, amounts in sorted(sums.items())])


def _claimed(report: Mapping[str, Any]) -> dict[str, float]:
    if report["superseded"]:
        return {"undone": report["samples"]}
    return {
        "reports": 1,
        "claimed": report["samples"],
        "pending": report["samples"],
        "elapsed_s": report["elapsed_s"],
        "data_wait_s": report["data_wait_s"],
        "averaged_bytes": report["averaged_bytes"],
    }


def recounted(session: Session, recounts: Iterable[Recount]) -> None:
    """Reports of one step count otherwise than before; always in the same order, so that no two writers block."""
    changes: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for each in recounts:
        change = changes[each.device_id, day_of(each.completed_at)]
        change[0] += (each.after or 0) - (each.before or 0)
        change[1] += each.claimed * ((each.after is None) - (each.before is None))
    shares = [
        _share(*key, {"counted": counted, "pending": pending}) for key, (counted, pending) in sorted(changes.items())
    ]
    _add(session, shares)


def steps_undone(session: Session, after_step: int) -> None:
    """The reports of all later steps are about to be undone: they count nowhere any more."""
    condition = (Report.step > after_step) & Report.superseded.is_(False)
    undone = []
    for row in session.execute(_sums(session, condition)).mappings():
        amounts = {name: -row[name] for name in _AMOUNTS if name != "undone"}
        undone.append(_share(row["device_id"], row["day"], amounts | {"undone": row["claimed"]}))
    _add(session, undone)


def _share(device_id: str, day: int, amounts: Mapping[str, float]) -> dict[str, object]:
    """A row of these amounts, and of nothing else: a new one needs them all."""
    return {"device_id": device_id, "day": day, **dict.fromkeys(_AMOUNTS, 0), **amounts}


def _add(session: Session, shares: Sequence[Mapping[str, object]]) -> None:
    add_up(session, DailyShare, ("device_id", "day"), shares)


def _sums(session: Session, condition: ColumnElement[bool]) -> Executable:
    """Per device and day, in order."""
    days = Report.completed_at / literal(DAY_S)
    day = cast(func.floor(days) if is_postgresql(session) else days, BigInteger)  # SQLite's cast cuts off
    return (
        select(
            Report.device_id,
            day.label("day"),
            func.count().label("reports"),
            func.sum(Report.samples).label("claimed"),
            func.sum(func.coalesce(Report.counted, 0)).label("counted"),
            func.sum(case((Report.counted.is_(None), Report.samples), else_=0)).label("pending"),
            func.sum(Report.elapsed_s).label("elapsed_s"),
            func.sum(Report.data_wait_s).label("data_wait_s"),
            func.sum(Report.averaged_bytes).label("averaged_bytes"),
        )
        .where(condition)
        .group_by(Report.device_id, day)
        .order_by(Report.device_id, day)
    )


def count_losses(session: Session, device_id: str, step: int, by_cause: Mapping[str, int], at: float) -> None:
    """Add samples to what this device has lost on that day (Unix seconds), by cause."""
    rows = [
        {"device_id": device_id, "day": day_of(at), "cause": cause, "samples": samples, "times": 1, "last_step": step}
        for cause, samples in sorted(by_cause.items())
        if samples > 0
    ]
    add_up(session, LostSamples, ("device_id", "day", "cause"), rows, newest={"last_step"})


def count_refused(session: Session, device_id: str, step: int, samples: int, target_batch_size: int, at: float) -> None:
    """Count a refused report's samples as lost, up to the most that one device can have computed."""
    believable = min(samples, int(MAX_SHARE_OF_TARGET * target_batch_size))
    count_losses(session, device_id, max(0, step), {LostCause.REFUSED.value: believable}, at)


def count_cut_off(session: Session, device: Device, now: float) -> None:
    """Count the samples that a device held when it was cut off, by its own last word."""
    newest = select(Stay).where(Stay.device_id == device.id, Stay.ended_at.is_(None)).order_by(Stay.started_at.desc())
    stay = session.scalar(newest.limit(1))
    if stay is not None:
        count_losses(session, device.id, stay.step + 1, {LostCause.QUARANTINE.value: stay.own_samples}, now)


def record_lost(
    sessions: Sessions, device_id: str, seq: int, lost: Lost, at: float, target_batch_size: int, now: float
) -> str:
    """Count what a device lost beside its reports, once however often it comes; returns why not, or an empty string."""

    def record(session: Session) -> str:
        device = session.get_one(Device, device_id, with_for_update=True)
        mark = session.get(LossMark, device_id)
        if mark is not None and seq <= mark.seq:
            return ""
        session.merge(LossMark(device_id=device_id, seq=seq))
        most = MAX_LOST_SHARE * target_batch_size
        if sum(lost.by_cause.values()) > most:
            reason = f"{sum(lost.by_cause.values())} lost samples are more than {most}"
            add_refusal(session, "report", "implausible", reason, device_id, now)
            return reason
        count_losses(session, device_id, lost.step, lost.by_cause, min(now, max(at, device.created_at)))
        return ""

    return sessions.transact(record)
