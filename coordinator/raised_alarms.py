"""The alarms that hold: one row of each kind, written by the keeper, shown by services; the audit log has all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.alarms import Alarm
from coordinator.audit import add_entry
from coordinator.store.alarm_models import RaisedAlarm
from coordinator.store.engine import Sessions
from coordinator.store.news import Topic, tell

ACTOR = "run:keeper"


@dataclass(frozen=True)
class AlarmRow:
    """An alarm that holds."""

    kind: str
    step: int
    detail: str
    raised_at: float  # Unix seconds


def raised_alarms(sessions: Sessions) -> list[AlarmRow]:
    """Those that hold now, the oldest first."""
    with sessions() as session:
        rows = session.scalars(select(RaisedAlarm).order_by(RaisedAlarm.raised_at, RaisedAlarm.kind))
        return [AlarmRow(row.kind, row.step, row.detail, row.raised_at) for row in rows]


def write_alarms(session: Session, kinds_looked_at: Collection[str], found: Sequence[Alarm], now: float) -> list[Alarm]:
    """Make the table say what was found of these kinds; returns what was not there, which goes into the audit log."""
    rows = session.scalars(select(RaisedAlarm).where(RaisedAlarm.kind.in_(kinds_looked_at)))
    there = {row.kind: row for row in rows}
    kinds = {alarm.kind for alarm in found}
    for kind in there.keys() - kinds:
        add_entry(session, ACTOR, "alarm-over", kind, f"since step {there[kind].step}", now)
        session.delete(there[kind])
    new = [alarm for alarm in found if alarm.kind not in there]
    for alarm in new:
        add_entry(session, ACTOR, "alarm", alarm.kind, f"step {alarm.step}: {alarm.detail}", now)
        session.add(RaisedAlarm(kind=alarm.kind, step=alarm.step, detail=alarm.detail, raised_at=now))
    for alarm in found:
        if alarm.kind in there:
            there[alarm.kind].detail = alarm.detail
    if new or there.keys() - kinds:
        tell(session, Topic.PROGRESS)
    return new
