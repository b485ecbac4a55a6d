"""Everybody who takes part, with their devices and what these gave in a span of days: for bubbles and the leaderboard.

A member is known to the public by a number and by the name that it may see (`coordinator.display_names`). A device
belongs to the kind of hardware that it said it was in its newest stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from coordinator.devices import KEEPER_ROLE
from coordinator.display_names import display_names
from coordinator.hardware_classes import HardwareClass, class_of
from coordinator.presence import is_online
from coordinator.shares import DAY_S, day_of
from coordinator.stays import newest_hardware
from coordinator.store.engine import Sessions
from coordinator.store.models import DailyShare, Device, Member
from coordinator.store.models import Session as Stay


class Window(str, Enum):
    """The days that a leaderboard is about, all of them UTC days, today included; the values are public."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ALL = "all"

    def first_day(self, now: float) -> int:
        """The first of them, as days since 1970-01-01."""
        days = {Window.DAY: 1, Window.WEEK: 7, Window.MONTH: 30}
        return day_of(now) - days[self] + 1 if self in days else -(2**31)


@dataclass(frozen=True)
class Given:
    """What came from somewhere in a span of days."""

    samples: int = 0  # as receipts confirm
    pending_samples: int = 0
    elapsed_s: float = 0.0  # spent training
    averaged_bytes: int = 0
    days: frozenset[int] = frozenset()  # with samples, or with bytes averaged for others

    def __add__(self, other: Given) -> Given:
        return Given(
            self.samples + other.samples,
            self.pending_samples + other.pending_samples,
            self.elapsed_s + other.elapsed_s,
            self.averaged_bytes + other.averaged_bytes,
            self.days | other.days,
        )


@dataclass(frozen=True)
class DeviceFacts:
    """One machine."""

    number: int
    kind: HardwareClass
    role: str
    joined_at: float  # Unix seconds
    given: Given
    online: bool
    state: str  # what it does, if it is online
    samples_per_second: float  # likewise
    last_seen_at: float | None
    shut_out: bool  # revoked, or in quarantine


@dataclass(frozen=True)
class Person:
    """One member."""

    number: int
    name: str  # that the public may see
    devices: tuple[DeviceFacts, ...]

    def given(self, kind: HardwareClass | None = None) -> Given:
        """By all devices, or by those of one kind."""
        return sum((each.given for each in self.devices if kind in (None, each.kind)), Given())

    @property
    def last_seen_at(self) -> float | None:
        """Of the device that was seen last."""
        return max((each.last_seen_at for each in self.devices if each.last_seen_at is not None), default=None)


@dataclass(frozen=True)
class Place:
    """One row of the leaderboard."""

    rank: int  # from 1; equals share one
    person: Person
    given: Given


def people(sessions: Sessions, now: float, window: Window = Window.ALL, number: int | None = None) -> list[Person]:
    """Every member with a device, or the one of this number, in the order of their numbers; without the keeper."""
    shown, hardware = display_names(sessions), newest_hardware(sessions)
    condition = Device.role != KEEPER_ROLE
    if number is not None:
        condition = and_(condition, Device.member_id == number)
    present = select(Stay).where(is_online(now)).order_by(Stay.started_at)
    seen = select(Stay.device_id, func.max(Stay.last_seen_at)).group_by(Stay.device_id)
    with sessions() as session:
        given = _given(_shares(session, window.first_day(now), condition))
        here = {stay.device_id: stay for stay in session.scalars(present)}
        seen_at: dict[str, float] = dict(session.execute(seen).all())
        rows = session.execute(select(Device, Member.name).join(Device.member).where(condition).order_by(Device.number))
        devices: dict[tuple[int, str], list[DeviceFacts]] = defaultdict(list)
        for device, name in rows:
            facts = _facts(device, hardware.get(device.id, ""), given[device.id], here.get(device.id), seen_at)
            devices[device.member_id, shown.get(name, name)].append(facts)
    return [Person(number, name, tuple(facts)) for (number, name), facts in sorted(devices.items())]


def leaderboard(everybody: Iterable[Person], kind: HardwareClass | None = None) -> list[Place]:
    """Who gave anything, the most first; bytes averaged for others decide between equals and rank who trains not."""
    rows = [(person.given(kind), person) for person in everybody]
    given = [(each, person) for each, person in rows if each.samples or each.averaged_bytes or each.pending_samples]
    ordered = sorted(given, key=lambda row: (-row[0].samples, -row[0].averaged_bytes, row[1].number))
    return _ranked(ordered)


def _ranked(ordered: Sequence[tuple[Given, Person]]) -> list[Place]:
    places: list[Place] = []
    for position, (given, person) in enumerate(ordered, start=1):
        ties = places and _score(places[-1].given) == _score(given)
        places.append(Place(places[-1].rank if ties else position, person, given))
    return places


def _score(given: Given) -> tuple[int, int]:
    return given.samples, given.averaged_bytes


def _shares(session: Session, first_day: int, condition: ColumnElement[bool]) -> Iterable[DailyShare]:
    since = select(DailyShare).join(Device, Device.id == DailyShare.device_id).where(DailyShare.day >= first_day)
    return session.scalars(since.where(condition))


def _given(shares: Iterable[DailyShare]) -> defaultdict[str, Given]:
    """By device."""
    found: defaultdict[str, Given] = defaultdict(Given)
    for share in shares:
        day = frozenset({share.day} if share.counted or share.averaged_bytes else ())
        found[share.device_id] += Given(share.counted, share.pending, share.elapsed_s, share.averaged_bytes, day)
    return found


def _facts(device: Device, hardware: str, given: Given, stay: Stay | None, seen_at: dict[str, float]) -> DeviceFacts:
    return DeviceFacts(
        number=device.number,
        kind=class_of(hardware),
        role=device.role,
        joined_at=device.created_at,
        given=given,
        online=stay is not None,
        state="" if stay is None else stay.state,
        samples_per_second=0.0 if stay is None else stay.samples_per_second,
        last_seen_at=seen_at.get(device.id),
        shut_out=device.revoked_at is not None or device.quarantined_at is not None,
    )


def midnight(day: int) -> float:
    """When this UTC day begins, in Unix seconds."""
    return float(day * DAY_S)
