"""The answer about one member: what came of every sample, devices, stays, days and steps. Times in Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from fastapi import HTTPException
from pydantic import BaseModel

from coordinator.statistics.member import DayFacts, days_of, losses_of, steps_of
from coordinator.statistics.people import (
    DeviceFacts,
    HardwareClass,
    Person,
    leaderboard,
    midnight,
    people,
    stays,
    streaks,
)
from coordinator.store.engine import Database
from coordinator.store.ledger_models import day_of

SHOWN_DAYS = 366
SHOWN_DEVICES = 100
SHOWN_STAYS = 1000


class DeviceOnPage(BaseModel):
    """One machine."""

    number: int
    kind: HardwareClass
    joined_at: float
    samples: int
    training_s: float
    averaged_bytes: int
    online: bool
    state: str
    samples_per_second: float
    last_seen_at: float | None


class DayOnPage(BaseModel):
    """One UTC day."""

    began_at: float
    samples: int  # that count
    pending_samples: int  # that may yet count
    training_s: float
    lost: dict[str, int]  # cause -> samples


class LossOnPage(BaseModel):
    """What one cause took."""

    cause: str
    samples: int
    times: int | None
    last_day: float
    last_step: int | None


class StayOnPage(BaseModel):
    """One session."""

    device: int
    began_at: float
    ended_at: float
    online: bool


class StepsOnPage(BaseModel):
    """Which part of the curve is the member's: ranges of steps, drawn together where there are very many."""

    count: int
    first: int | None
    last: int | None
    ranges: list[tuple[int, int]]


class StreaksOnPage(BaseModel):
    """Days in a row with a contribution."""

    current: int
    longest: int
    active_days: int


class MemberPage(BaseModel):
    """One member, as everybody may see it."""

    number: int
    member: str
    rank: int | None
    members: int  # on the leaderboard
    samples: int
    pending_samples: int
    lost_samples: int
    training_s: float
    averaged_bytes: int
    streaks: StreaksOnPage
    devices_total: int
    devices: list[DeviceOnPage]  # the newest
    losses: list[LossOnPage]  # the gravest first
    days: list[DayOnPage]  # the newest, in order
    steps: StepsOnPage
    stays: list[StayOnPage]  # the newest, in order
    last_seen_at: float | None
    taken_at: float


def member_page(database: Database, number: int, now: float) -> MemberPage:
    """Everything about the member of this number; raises `HTTPException` 404 for who is nobody."""
    everybody = people(database, now)
    person = next((each for each in everybody if each.number == number), None)
    if person is None:
        raise HTTPException(404, f"No member has the number {number}.")
    places = leaderboard(everybody)
    days = days_of(database, number)
    losses = losses_of(database, number, days)
    given, steps = person.given(), steps_of(database, number)
    row = streaks(given.days, day_of(now))
    return MemberPage(
        number=number,
        member=person.name,
        rank=next((place.rank for place in places if place.person is person), None),
        members=len(places),
        samples=given.samples,
        pending_samples=given.pending_samples,
        lost_samples=sum(each.samples for each in losses),
        training_s=round(given.elapsed_s, 1),
        averaged_bytes=given.averaged_bytes,
        streaks=StreaksOnPage(current=row.current, longest=row.longest, active_days=row.active),
        devices_total=len(person.devices),
        devices=[_device(each) for each in _newest(person)],
        losses=[LossOnPage(**asdict(each) | {"last_day": midnight(each.last_day)}) for each in losses],
        days=_days(days),
        steps=StepsOnPage(count=steps.steps, first=steps.first, last=steps.last, ranges=list(steps.ranges)),
        stays=_stays(database, number, now),
        last_seen_at=person.last_seen_at,
        taken_at=now,
    )


def _newest(person: Person) -> Sequence[DeviceFacts]:
    ordered = sorted(person.devices, key=lambda each: (not each.online, -(each.last_seen_at or 0.0), -each.number))
    return ordered[:SHOWN_DEVICES]


def _device(device: DeviceFacts) -> DeviceOnPage:
    return DeviceOnPage(
        number=device.number,
        kind=device.kind,
        joined_at=device.joined_at,
        samples=device.given.samples,
        training_s=round(device.given.elapsed_s, 1),
        averaged_bytes=device.given.averaged_bytes,
        online=device.online,
        state=device.state,
        samples_per_second=round(device.samples_per_second, 3),
        last_seen_at=device.last_seen_at,
    )


def _days(days: Mapping[int, DayFacts]) -> list[DayOnPage]:
    return [
        DayOnPage(
            began_at=midnight(day),
            samples=facts.samples,
            pending_samples=facts.pending_samples,
            training_s=round(facts.elapsed_s, 1),
            lost={cause: samples for cause, samples in facts.lost.items() if samples},
        )
        for day, facts in list(days.items())[-SHOWN_DAYS:]
    ]


def _stays(database: Database, number: int, now: float) -> list[StayOnPage]:
    rows = stays(database, 0.0, now, now, number, SHOWN_STAYS)
    return [
        StayOnPage(
            device=row.device_number,
            began_at=round(row.began_at, 1),
            ended_at=round(row.ended_at, 1),
            online=row.is_online,
        )
        for row in rows
    ]
