"""Alarms about a run's training, derived from its steps and evaluations.

Each alarm has the step at which the problem began, which determines the checkpoint to return to.
Only steps of the current phase are compared, because the loss depends on sequence length and batch
size. `alarms_of` is a pure function. The keeper stores the active alarms, one row per kind; the
audit log keeps all alarms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.members.audit import add_entry
from coordinator.statistics.course import rise_of
from coordinator.store.checkpoint_models import RaisedAlarm
from coordinator.store.engine import Database
from coordinator.store.notify import Topic, tell

ModelKind = Literal["loss_not_finite", "loss_diverges", "update_norm", "no_better_than_unigram"]
DeviceKind = Literal["swarm_split", "devices_starting"]  # alarms raised by `coordinator.keeper.alarm_watch`
SPLIT: DeviceKind = "swarm_split"
STARTING: DeviceKind = "devices_starting"
MODEL_KINDS: tuple[ModelKind, ...] = get_args(ModelKind)
UPDATE_RISE = 10.0  # update norm that raises an alarm, as a multiple of the median; far above any warm-up
UPDATES_KNOWN = 20  # minimum number of earlier steps needed for a median norm
UPDATES_COMPARED = 100
HELD_STEPS = 20  # number of steps for which an alarm about one update remains active
LEAST_PATIENCE = 200  # steps before a model must beat a unigram model, unless the warm-up is longer
ACTOR = "run:keeper"


@dataclass(frozen=True)
class Alarm:
    """An alarm about a run."""

    kind: ModelKind | DeviceKind
    step: int  # step at which the problem began
    detail: str


@dataclass(frozen=True)
class Vitals:
    """The measurements of the current phase from which alarms are derived."""

    losses: Sequence[tuple[int, float | None]]  # (step, loss) in order; the loss is None if not finite
    updates: Sequence[tuple[int, float]] = ()  # (step, norm of the parameter update) in order
    began: int = 0  # first step of the phase
    held_out: tuple[int, float | None] | None = None  # (step, loss per token) of the newest evaluation
    unigram: float | None = None  # loss of a unigram model on the same tokens


def alarms_of(vitals: Vitals, *, warmup_steps: int) -> list[Alarm]:
    """Return the alarms that these measurements raise."""
    found = (
        _not_finite(vitals),
        _diverges(vitals),
        _leaps(vitals),
        _learns_nothing(vitals, max(LEAST_PATIENCE, warmup_steps)),
    )
    return [alarm for alarm in found if alarm is not None]


def _not_finite(vitals: Vitals) -> Alarm | None:
    """Return an alarm if the newest loss is not finite, naming the step where this began."""
    began = None
    for step, loss in reversed(vitals.losses):
        if loss is not None and math.isfinite(loss):
            break
        began = step
    return None if began is None else Alarm("loss_not_finite", began, "the loss is not finite")


def _diverges(vitals: Vitals) -> Alarm | None:
    """Return an alarm if the loss has risen, naming the step where the rise began."""
    rise = rise_of([(step, loss) for step, loss in vitals.losses if loss is not None and math.isfinite(loss)])
    if rise is None:
        return None
    detail = f"the loss is {rise.now:.4g}, and was {rise.best:.4g} at step {rise.best_step}"
    return Alarm("loss_diverges", rise.began, detail)


def _leaps(vitals: Vitals) -> Alarm | None:
    """Return an alarm if a recent step moved the parameters much further than the steps before it.

    The alarm's step is the first such step; the detail describes the newest one.
    """
    updates = vitals.updates
    began, detail = None, ""
    for index in range(max(UPDATES_KNOWN, len(updates) - HELD_STEPS), len(updates)):
        step, norm = updates[index]
        usual = median(norm for _, norm in updates[max(0, index - UPDATES_COMPARED) : index])
        if not norm <= UPDATE_RISE * usual:  # also true if the norm is NaN
            began = step if began is None else began
            detail = f"step {step} moved the parameters by {norm:.3g}, the median is {usual:.3g}"
    return None if began is None else Alarm("update_norm", began, detail)


def _learns_nothing(vitals: Vitals, patience_steps: int) -> Alarm | None:
    """Return an alarm if the newest evaluated checkpoint is no better than a unigram model."""
    if vitals.held_out is None or vitals.unigram is None:
        return None
    step, loss = vitals.held_out
    if step < vitals.began + patience_steps or loss is None or loss < vitals.unigram:
        return None
    detail = f"the loss on held-out text is {loss:.4g}, a unigram model has {vitals.unigram:.4g}"
    return Alarm("no_better_than_unigram", step, detail)


@dataclass(frozen=True)
class AlarmRow:
    """An active alarm, as stored in the database."""

    kind: str
    step: int
    detail: str
    raised_at: float  # Unix time in seconds


def raised_alarms(database: Database) -> list[AlarmRow]:
    """Read the active alarms, oldest first."""
    with database() as session:
        rows = session.scalars(select(RaisedAlarm).order_by(RaisedAlarm.raised_at, RaisedAlarm.kind))
        return [AlarmRow(row.kind, row.step, row.detail, row.raised_at) for row in rows]


def write_alarms(session: Session, kinds_looked_at: Collection[str], found: Sequence[Alarm], now: float) -> list[Alarm]:
    """Replace the stored alarms of these kinds; return the new ones. The audit log records changes.

    Another large parameter update is a new alarm, but the stored row keeps the earliest step.
    """
    rows = session.scalars(select(RaisedAlarm).where(RaisedAlarm.kind.in_(kinds_looked_at)))
    there = {row.kind: row for row in rows}
    kinds = {alarm.kind for alarm in found}
    for kind in there.keys() - kinds:
        add_entry(session, ACTOR, "alarm-over", kind, f"since step {there[kind].step}", now)
        session.delete(there[kind])
    new = [alarm for alarm in found if alarm.kind not in there or _is_another_leap(alarm, there[alarm.kind])]
    for alarm in new:
        add_entry(session, ACTOR, "alarm", alarm.kind, f"step {alarm.step}: {alarm.detail}", now)
    for alarm in found:
        row = there.get(alarm.kind)
        if row is None:
            session.add(RaisedAlarm(kind=alarm.kind, step=alarm.step, detail=alarm.detail, raised_at=now))
        else:
            row.step, row.detail = min(row.step, alarm.step), alarm.detail
    if new or there.keys() - kinds:
        tell(session, Topic.PROGRESS)
    return new


def _is_another_leap(alarm: Alarm, row: RaisedAlarm) -> bool:
    return alarm.kind == "update_norm" and alarm.detail != row.detail
