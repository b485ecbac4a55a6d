"""Samples that were computed and are in no step: added up for each device, day and cause, so that members can see why.

A device tells of its own (`peer.lost_causes`), with its reports or, where it leaves, apart from them. What the
coordinator refuses or cuts off it counts itself. Nobody gains by what is said here: it counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.plausibility import MAX_LOST_SHARE, MAX_SHARE_OF_TARGET
from coordinator.refusals import add_refusal
from coordinator.shares import day_of
from coordinator.store.adding import add_up
from coordinator.store.engine import Sessions
from coordinator.store.models import Device
from coordinator.store.models import Session as Stay
from coordinator.store.share_models import LossMark, LostSamples
from peer.lost_causes import Lost, LostCause


def count_losses(session: Session, device_id: str, step: int, by_cause: Mapping[str, int], at: float) -> None:
    """Add samples to what this device has lost on that day (Unix seconds), by cause."""
    rows = [
        {"device_id": device_id, "day": day_of(at), "cause": cause, "samples": samples, "times": 1, "last_step": step}
        for cause, samples in sorted(by_cause.items())
        if samples > 0
    ]
    add_up(session, LostSamples, ("device_id", "day", "cause"), rows, newest={"last_step"})


def count_refused(session: Session, device_id: str, step: int, samples: int, target_batch_size: int, at: float) -> None:
    """What a report claimed that could not be true, as far as it could be."""
    believable = min(samples, int(MAX_SHARE_OF_TARGET * target_batch_size))
    count_losses(session, device_id, max(0, step), {LostCause.REFUSED.value: believable}, at)


def count_cut_off(session: Session, device: Device, now: float) -> None:
    """What a device held when it was cut off, as it last said."""
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
