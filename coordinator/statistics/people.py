"""Members, their devices and daily contributions: leaderboard, sessions and streaks.

Members are identified publicly by number and public name (`coordinator.members.names`). A stay is a
session of a device. Hardware classes, derived from the hardware that devices report, allow
leaderboards of similar devices. Days are UTC days, counted from 1970-01-01.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from coordinator.ledger.sessions import ONLINE_S, is_online
from coordinator.members.names import display_names
from coordinator.store.engine import Database
from coordinator.store.ledger_models import DAY_S, day_of
from coordinator.store.models import KEEPER_ROLE, DailyShare, Device, DeviceSession, Member

_LARGE = re.compile(r"\b(a100|a800|h100|h200|h800|gh200|b100|b200|gb200|v100|l40s?|a40|a30|a6000|mi[123]\d\d)\b")
MOST_STAYS = 5000


class LeaderboardPeriod(str, Enum):
    """The period of a leaderboard, in UTC days up to today; the values are part of the API."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ALL = "all"

    def first_day(self, now: float) -> int:
        """Return the period's first day, in days since 1970-01-01."""
        days = {LeaderboardPeriod.DAY: 1, LeaderboardPeriod.WEEK: 7, LeaderboardPeriod.MONTH: 30}
        return day_of(now) - days[self] + 1 if self in days else -(2**31)


@dataclass(frozen=True)
class Given:
    """The contribution of a device or a member over a range of days."""

    samples: int = 0  # samples confirmed by receipts
    pending_samples: int = 0
    elapsed_s: float = 0.0  # training time of the devices
    averaged_bytes: int = 0
    days: frozenset[int] = frozenset()  # days with confirmed samples or averaged bytes

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
    """A member's device, with its contribution."""

    number: int
    kind: HardwareClass
    joined_at: float  # Unix time in seconds
    given: Given
    online: bool
    state: str  # current activity; "" if offline
    samples_per_second: float  # current speed; 0 if offline
    last_seen_at: float | None


@dataclass(frozen=True)
class Person:
    """A member, with the member's devices."""

    number: int
    name: str  # the member's public name
    devices: tuple[DeviceFacts, ...]

    def given(self, kind: HardwareClass | None = None) -> Given:
        """Return the contribution of all devices, or of the devices of one class."""
        return sum((each.given for each in self.devices if kind in (None, each.kind)), Given())

    @property
    def hardware(self) -> HardwareClass:
        """The class of the device with the largest contribution; ties go to the newest device."""
        return max(self.devices, key=lambda each: (each.given.samples, each.given.averaged_bytes, each.number)).kind

    @property
    def online(self) -> bool:
        """True if at least one device is connected."""
        return any(each.online for each in self.devices)

    @property
    def last_seen_at(self) -> float | None:
        """The Unix time at which any of the devices was last seen."""
        return max((each.last_seen_at for each in self.devices if each.last_seen_at is not None), default=None)


@dataclass(frozen=True)
class LeaderboardRow:
    """A row of the leaderboard."""

    rank: int  # rank, starting at 1; equal contributions share a rank
    person: Person
    given: Given


def people(
    database: Database, now: float, window: LeaderboardPeriod = LeaderboardPeriod.ALL, number: int | None = None
) -> list[Person]:
    """Return members with devices, except the keeper, ordered by number; `number` selects one."""
    shown, hardware = display_names(database), newest_hardware(database)
    condition = Device.role != KEEPER_ROLE
    if number is not None:
        condition = and_(condition, Device.member_id == number)
    present = select(DeviceSession).where(is_online(now)).order_by(DeviceSession.started_at)
    seen = select(DeviceSession.device_id, func.max(DeviceSession.last_seen_at)).group_by(DeviceSession.device_id)
    with database() as session:
        given = _given(session, window.first_day(now), condition)
        here = {stay.device_id: stay for stay in session.scalars(present)}
        seen_at: dict[str, float] = dict(session.execute(seen).all())
        rows = session.execute(select(Device, Member.name).join(Device.member).where(condition).order_by(Device.number))
        devices: dict[tuple[int, str], list[DeviceFacts]] = defaultdict(list)
        for device, name in rows:
            stay = here.get(device.id)
            facts = DeviceFacts(
                number=device.number,
                kind=class_of(hardware.get(device.id, "")),
                joined_at=device.created_at,
                given=given[device.id],
                online=stay is not None,
                state="" if stay is None else stay.state,
                samples_per_second=0.0 if stay is None else stay.samples_per_second,
                last_seen_at=seen_at.get(device.id),
            )
            devices[device.member_id, shown.get(name, name)].append(facts)
    return [Person(number, name, tuple(facts)) for (number, name), facts in sorted(devices.items())]


def leaderboard(everybody: Iterable[Person], kind: HardwareClass | None = None) -> list[LeaderboardRow]:
    """Rank all contributors by samples, then by averaged bytes."""
    rows = [(person.given(kind), person) for person in everybody]
    rows = [row for row in rows if row[0].samples or row[0].averaged_bytes or row[0].pending_samples]
    ranks: dict[tuple[int, int], int] = {}
    places = []
    for position, (given, person) in enumerate(sorted(rows, key=lambda row: (*_score(row[0]), row[1].number)), start=1):
        places.append(LeaderboardRow(ranks.setdefault(_score(given), position), person, given))
    return places


def _score(given: Given) -> tuple[int, int]:
    return -given.samples, -given.averaged_bytes


def _given(session: Session, first_day: int, condition: ColumnElement[bool]) -> defaultdict[str, Given]:
    """Return each device's contribution since `first_day`, by device id."""
    since = select(DailyShare).join(Device, Device.id == DailyShare.device_id).where(DailyShare.day >= first_day)
    found: defaultdict[str, Given] = defaultdict(Given)
    for share in session.scalars(since.where(condition)):
        day = frozenset({share.day} if share.counted or share.averaged_bytes else ())
        found[share.device_id] += Given(share.counted, share.pending, share.elapsed_s, share.averaged_bytes, day)
    return found


def midnight(day: int) -> float:
    """Return the Unix time at which a UTC day begins."""
    return float(day * DAY_S)


class HardwareClass(str, Enum):
    """A class of hardware; the values are part of the public API."""

    TPU = "tpu"
    LARGE_GPU = "large-gpu"  # data-centre GPUs
    GPU = "gpu"  # other GPUs, including those of free notebooks
    APPLE = "apple"
    CPU = "cpu"
    UNKNOWN = "unknown"


_PATTERNS = (
    (HardwareClass.TPU, re.compile(r"\btpu\b")),
    (HardwareClass.APPLE, re.compile(r"\b(mps|apple)\b")),
    (HardwareClass.GPU, re.compile(r"\b(cuda|gpu|nvidia|tesla|rocm)\b")),
    (HardwareClass.CPU, re.compile(r"\bcpu\b")),
)


def class_of(hardware: str) -> HardwareClass:
    """Classify a device by the hardware it reported, such as `cuda:0 (Tesla T4)`."""
    words = hardware.lower()
    kind = next((kind for kind, pattern in _PATTERNS if pattern.search(words)), HardwareClass.UNKNOWN)
    return HardwareClass.LARGE_GPU if kind is HardwareClass.GPU and _LARGE.search(words) else kind


@dataclass(frozen=True)
class StayRow:
    """A session of a device; times are Unix times in seconds."""

    member: int  # the member's number
    device: int  # the device's number
    kind: HardwareClass
    began_at: float
    ended_at: float  # end of the session; if it is open, time of the last message
    online: bool


def stays(
    database: Database, since: float, until: float, now: float, number: int | None = None, most: int = MOST_STAYS
) -> list[StayRow]:
    """Return the newest `most` sessions of a period, except the keeper's, ordered by start time."""
    query = (
        select(DeviceSession, Device.member_id, Device.number)
        .join(Device, Device.id == DeviceSession.device_id)
        .where(Device.role != KEEPER_ROLE, DeviceSession.last_seen_at >= since, DeviceSession.started_at <= until)
        .order_by(DeviceSession.started_at.desc(), DeviceSession.id)
        .limit(most)
    )
    if number is not None:
        query = query.where(Device.member_id == number)
    with database() as session:
        found = [_row(stay, member, device, now) for stay, member, device in session.execute(query)]
    return found[::-1]


def newest_hardware(database: Database) -> dict[str, str]:
    """Return the hardware reported in each device's newest session, by device id."""
    newest = (
        select(DeviceSession.device_id, func.max(DeviceSession.last_seen_at).label("at"))
        .group_by(DeviceSession.device_id)
        .subquery()
    )
    query = select(DeviceSession.device_id, DeviceSession.hardware).join(
        newest, (DeviceSession.device_id == newest.c.device_id) & (DeviceSession.last_seen_at == newest.c.at)
    )
    with database() as session:
        return dict(session.execute(query).all())


def _row(stay: DeviceSession, member_number: int, device_number: int, now: float) -> StayRow:
    is_online = stay.ended_at is None and stay.last_seen_at > now - ONLINE_S
    ended_at = stay.last_seen_at if stay.ended_at is None else stay.ended_at
    return StayRow(member_number, device_number, class_of(stay.hardware), stay.started_at, ended_at, is_online)


@dataclass(frozen=True)
class Streaks:
    """A member's streaks: numbers of consecutive days with a contribution."""

    current: int  # streak up to today, or up to yesterday if there is no contribution today
    longest: int
    active_days: int  # number of days with a contribution


def streaks(days: Iterable[int], today: int) -> Streaks:
    """Compute the streaks from a member's active days, given in any order."""
    given = sorted(set(days))
    longest = length = 0
    lengths: dict[int, int] = {}  # length of the streak that ends on each day
    for day in given:
        length = length + 1 if day - 1 in lengths else 1
        lengths[day] = length
        longest = max(longest, length)
    return Streaks(lengths.get(today, lengths.get(today - 1, 0)), longest, len(given))
