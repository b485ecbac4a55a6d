"""Who was here when: the sessions of a span of time, for the timeline."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from coordinator.devices import KEEPER_ROLE
from coordinator.hardware_classes import HardwareClass, class_of
from coordinator.presence import ONLINE_S
from coordinator.store.engine import Sessions
from coordinator.store.models import Device
from coordinator.store.models import Session as Stay

MOST_STAYS = 5000


@dataclass(frozen=True)
class StayRow:
    """One connected stay of a device; times in Unix seconds."""

    member_number: int
    device_number: int
    kind: HardwareClass
    began_at: float
    ended_at: float  # or when it was last heard of
    is_online: bool


def stays(
    sessions: Sessions, since: float, until: float, now: float, member_number: int | None = None, most: int = MOST_STAYS
) -> list[StayRow]:
    """The newest ones that overlap this span, in the order of their beginnings; the keeper's are left out."""
    query = (
        select(Stay, Device.member_id, Device.number)
        .join(Device, Device.id == Stay.device_id)
        .where(Device.role != KEEPER_ROLE, Stay.last_seen_at >= since, Stay.started_at <= until)
        .order_by(Stay.started_at.desc(), Stay.id)
        .limit(most)
    )
    if member_number is not None:
        query = query.where(Device.member_id == member_number)
    with sessions() as session:
        found = [_row(stay, number, device, now) for stay, number, device in session.execute(query)]
    return found[::-1]


def newest_hardware(sessions: Sessions) -> dict[str, str]:
    """Device's id -> what it said of itself in its newest stay."""
    newest = select(Stay.device_id, func.max(Stay.last_seen_at).label("at")).group_by(Stay.device_id).subquery()
    query = select(Stay.device_id, Stay.hardware).join(
        newest, (Stay.device_id == newest.c.device_id) & (Stay.last_seen_at == newest.c.at)
    )
    with sessions() as session:
        return dict(session.execute(query).all())


def _row(stay: Stay, member_number: int, device_number: int, now: float) -> StayRow:
    is_online = stay.ended_at is None and stay.last_seen_at > now - ONLINE_S
    ended_at = stay.last_seen_at if stay.ended_at is None else stay.ended_at
    return StayRow(member_number, device_number, class_of(stay.hardware), stay.started_at, ended_at, is_online)
