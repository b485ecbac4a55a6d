"""Data for the history page about each global step: devices, averaging groups, lost samples, loss.

Steps are read in chunks from the ledger and the sessions, with members' public names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.members.names import display_names
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device, DeviceSession, Era, Member, Refusal, Report, Step

CHUNK_STEPS = 100  # steps per chunk; an archive has one file per chunk
SHARED_REFUSALS = ("join", "report", "suspicion")  # kinds of refusals shown on the page


@dataclass(frozen=True)
class Share:
    """A device's contribution to a step."""

    device: int  # the device's index in `Chunk.devices`
    samples: int  # confirmed samples, or claimed samples before the first receipt
    group_size: int  # number of devices that averaged together, including the keeper
    group_samples: int | None  # number of samples averaged by the group, or None if unknown
    averaging_s: float
    lost_samples: int
    lost_reason: str


@dataclass(frozen=True)
class Group:
    """A group of devices that averaged with each other in one step."""

    size: int  # number of devices, including the keeper and auxiliary devices
    samples: int | None
    averaging_s: float  # averaging time of the slowest device
    devices: tuple[int, ...]


@dataclass(frozen=True)
class LostShare:
    """The samples that a device lost, and the reason."""

    device: int
    samples: int
    reason: str


@dataclass(frozen=True)
class Moment:
    """A global step, as shown on the history page."""

    step: int
    era: int
    completed_at: float  # Unix time in seconds
    loss: float | None
    samples: int
    target_batch_size: int
    shares: tuple[tuple[int, int], ...]  # (device, samples) pairs, most samples first
    groups: tuple[Group, ...]  # averaging groups, largest first
    lost: tuple[LostShare, ...]
    refused: dict[str, int]  # number of refusals since the previous step, by kind
    online: tuple[int, ...]  # devices with an open session or a contribution
    undone: int  # number of contributions to this step that a rewind undid
    returned: bool  # True if the run was rewound to the checkpoint of this step


@dataclass(frozen=True)
class MomentDevice:
    """A device, its owner, and the hardware that the device reported."""

    number: int
    member: str
    hardware: str


@dataclass(frozen=True)
class Chunk:
    """The completed steps from `first` to `last`."""

    first: int
    last: int
    steps_per_chunk: int
    devices: tuple[MomentDevice, ...]
    moments: tuple[Moment, ...]


def chunk_of(step: int) -> int:
    """Return the number of the chunk (from 0) that contains a step (from 1)."""
    return (step - 1) // CHUNK_STEPS


def groups_of(shares: Iterable[Share]) -> tuple[Group, ...]:
    """Group devices that averaged together, according to the devices' own reports; a pure function.

    Groups of equal size are distinguished by their samples. A device that does not know the group's
    samples is assigned to the first group of its size.
    """
    found: dict[tuple[int, int | None], list[Share]] = defaultdict(list)
    for share in sorted(shares, key=lambda each: each.group_samples is None):  # put shares with unknown samples last
        key = (share.group_size, share.group_samples)
        if share.group_samples is None:
            key = next((other for other in found if other[0] == share.group_size), key)
        if share.group_size >= 1:
            found[key].append(share)
    groups = [
        Group(size, samples, max(each.averaging_s for each in members), tuple(each.device for each in members))
        for (size, samples), members in found.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.size, -(group.samples or 0))))


def read_chunk(database: Database, number: int) -> Chunk:
    """Read a chunk (numbered from 0); a chunk beyond the end of the run is empty."""
    first, last = number * CHUNK_STEPS + 1, (number + 1) * CHUNK_STEPS
    shown = display_names(database)
    with database() as session:
        steps = session.scalars(select(Step).where(Step.step.between(first, last)).order_by(Step.step)).all()
        if not steps:
            return Chunk(first, last, CHUNK_STEPS, (), ())
        began_at = session.scalar(
            select(Step.completed_at).where(Step.step < first).order_by(Step.step.desc()).limit(1)
        )
        before = began_at if began_at is not None else steps[0].completed_at
        times = list(accumulate([before, *(row.completed_at for row in steps)], max))  # ascending despite clock skew
        book = _DeviceBook(session)
        shares, undone = _shares(session, first, last, book)
        online = _online(session, times[1:], book)
        refused = _refused(session, times)
        returns = set(session.scalars(select(Era.after_step).where(Era.after_step.between(first, last))))
        moments = tuple(
            Moment(
                step=row.step,
                era=row.era,
                completed_at=row.completed_at,
                loss=row.loss_sum / row.loss_samples if row.loss_samples else None,
                samples=row.samples,
                target_batch_size=row.target_batch_size,
                shares=_given(shares[row.step]),
                groups=groups_of(shares[row.step]),
                lost=_lost(shares[row.step]),
                refused=refused[index],
                online=tuple(sorted(online[index] | {share.device for share in shares[row.step]})),
                undone=undone[row.step],
                returned=row.step in returns,
            )
            for index, row in enumerate(steps)
        )
        return Chunk(first, last, CHUNK_STEPS, book.devices(shown), moments)


def _given(shares: Sequence[Share]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(((each.device, each.samples) for each in shares), key=lambda pair: (-pair[1], pair[0])))


def _lost(shares: Sequence[Share]) -> tuple[LostShare, ...]:
    return tuple(LostShare(each.device, each.lost_samples, each.lost_reason) for each in shares if each.lost_samples)


class _DeviceBook:
    """An index of a chunk's devices in order of appearance, without the keeper."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._keepers = set(session.scalars(select(Device.id).where(Device.role == KEEPER_ROLE)))
        self._indexes: dict[str, int] = {}

    def __contains__(self, device_id: str) -> bool:
        return device_id not in self._keepers

    def index(self, device_id: str) -> int:
        """Return the device's index in the chunk's list."""
        return self._indexes.setdefault(device_id, len(self._indexes))

    def devices(self, shown: dict[str, str]) -> tuple[MomentDevice, ...]:
        """Return the chunk's devices in order; `shown` maps members to their public names."""
        stays = select(DeviceSession.hardware).where(DeviceSession.device_id == Device.id)
        newest = stays.order_by(DeviceSession.started_at.desc()).limit(1).scalar_subquery()
        query = select(Device.id, Device.number, Member.name, newest).join(Device.member)
        rows = self._session.execute(query.where(Device.id.in_(list(self._indexes))))
        facts = {device: MomentDevice(number, shown.get(name, name), said or "") for device, number, name, said in rows}
        return tuple(facts[device] for device in self._indexes)


def _shares(session: Session, first: int, last: int, book: _DeviceBook) -> tuple[dict[int, list[Share]], Counter[int]]:
    """Read each step's contributions, and the number of undone contributions to each step."""
    query = (
        select(
            Report.step,
            Report.superseded,
            Report.device_id,
            func.coalesce(Report.counted, Report.samples),
            Report.group_size,
            Report.group_samples,
            Report.averaging_s,
            Report.lost_samples,
            Report.lost_reason,
        )
        .where(Report.step.between(first, last))
        .order_by(Report.id)
    )
    shares: dict[int, list[Share]] = defaultdict(list)
    undone: Counter[int] = Counter()
    rows: Iterable[Any] = session.execute(query)
    for step, superseded, device, *rest in rows:
        if superseded:
            undone[step] += 1
        elif device in book:
            shares[step].append(Share(book.index(device), *rest))
    return shares, undone


def _online(session: Session, times: Sequence[float], book: _DeviceBook) -> list[set[int]]:
    """Return the devices with an open session at each of these times, which are ascending."""
    until = func.coalesce(DeviceSession.ended_at, DeviceSession.last_seen_at)
    stays = select(DeviceSession.device_id, DeviceSession.started_at, until).where(
        DeviceSession.started_at <= times[-1], DeviceSession.last_seen_at >= times[0]
    )
    present: list[set[int]] = [set() for _ in times]
    for device, started_at, ended_at in session.execute(stays.order_by(DeviceSession.started_at)):
        if device in book:
            for index in range(bisect_left(times, started_at), len(times)):
                if times[index] > ended_at:
                    break
                present[index].add(book.index(device))
    return present


def _refused(session: Session, times: Sequence[float]) -> list[dict[str, int]]:
    """Count the refusals between consecutive times, by kind."""
    query = select(Refusal.at, Refusal.kind).where(
        Refusal.at > times[0], Refusal.at <= times[-1], Refusal.kind.in_(SHARED_REFUSALS)
    )
    found: list[Counter[str]] = [Counter() for _ in times[1:]]
    for at, kind in session.execute(query):
        found[bisect_left(times, at, lo=1) - 1][kind] += 1
    return [dict(each) for each in found]
