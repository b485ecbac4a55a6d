"""Read access to the ledger: the run's steps, and contributions by member and by hardware.

The sums per step and the daily sums per device are updated as reports arrive
(`coordinator.ledger.ledger`), so reading them is cheap.

Contributions by hardware are summed over individual reports. A run has hundreds of thousands of
reports, and the dashboard refreshes every second, so the sums of older steps are cached, and only
reports of recent steps are read again. Rewinds to a checkpoint and very late reports change older
sums; all reports are therefore reread every 15 minutes.

Each session has a hardware description, for example `cuda:0,1, 4 cores` or `tpu, 96 cores`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from sqlalchemy import Select, and_, case, func, select
from sqlalchemy.orm import Session

from coordinator.ledger.sessions import is_online
from coordinator.store.engine import Database
from coordinator.store.eras import current_era, last_counting_step
from coordinator.store.ledger_models import LossMark
from coordinator.store.models import KEEPER_ROLE, DailyShare, Device, DeviceSession, Member, Receipt, Report, Step
from coordinator.throttling.shared_work import LITTLE_S, REST, Costly

SETTLED_S = 30.0  # time in seconds within which a step's reports arrive, except from offline peers
Kind = Literal["gpu", "tpu", "apple", "cpu", "other"]
KINDS: tuple[Kind, ...] = ("gpu", "tpu", "apple", "cpu", "other")
_SEVERAL = re.compile(r"\b(\d{1,2}) × cuda\b")  # workers' hardware, such as `2 × cuda (Tesla T4, 15 GiB)`
_CUDA = re.compile(r"cuda(?::(\d+(?:,\d+)*))?(?![\w])")
LATE_STEPS = 200  # number of recent steps whose reports and receipts may still arrive
READ_WHOLE_S = 900.0  # interval between full rereads


@dataclass(frozen=True)
class StepRow:
    """One global step, with sums over the reports received so far."""

    step: int
    samples: int
    loss: float | None  # mean over samples, or None if no device reported a loss
    devices: int
    completed_at: float
    target_batch_size: int


@dataclass(frozen=True)
class Contribution:
    """The total contribution of a member."""

    member: str
    samples: int  # confirmed by receipts
    devices: int
    online: int  # number of devices online now
    last_seen_at: float | None
    samples_per_second: float  # total speed of the online devices
    elapsed_s: float  # training time of all devices, without undone steps
    data_wait_s: float  # part of `elapsed_s` spent waiting for data
    averaged_bytes: int  # bytes averaged for other peers, as reported by the devices
    pending_samples: int = 0  # claimed, but neither confirmed nor denied by any receipt


def data_wait_share(contributions: Sequence[Contribution]) -> float | None:
    """Return the fraction of training time spent waiting for data, or None without training time."""
    elapsed_s = sum(row.elapsed_s for row in contributions)
    return min(1.0, sum(row.data_wait_s for row in contributions) / elapsed_s) if elapsed_s else None


@dataclass(frozen=True)
class Hardware:
    """The kind and number of processors that a machine uses for training."""

    kind: Kind
    accelerators: int  # number of GPUs used for training; 1 for other hardware


def hardware_of(said: str) -> Hardware:
    """Parse the hardware description of a session; peers can send arbitrary text."""
    text = said.strip().lower()
    if several := _SEVERAL.findall(text):
        return Hardware("gpu", min(64, sum(map(int, several))))
    if found := _CUDA.match(text):
        return Hardware("gpu", 1 if found[1] is None else min(64, 1 + found[1].count(",")))
    first = re.split(r"[^a-z]", text, maxsplit=1)[0]
    kinds: dict[str, Kind] = {"tpu": "tpu", "jax": "tpu", "mps": "apple", "cpu": "cpu"}
    return Hardware(kinds.get(first, "other"), 1)


@dataclass(frozen=True)
class Gift:
    """Sums over reports; undone steps contribute only to `undone_s`."""

    samples: int = 0  # confirmed by receipts
    pending_samples: int = 0  # neither confirmed nor denied by any receipt
    averaged_bytes: int = 0
    elapsed_s: float = 0.0  # training time of valid steps
    data_wait_s: float = 0.0  # part of `elapsed_s` spent waiting for data
    undone_s: float = 0.0  # training time of undone steps

    def __add__(self, other: Gift) -> Gift:
        return Gift(*(getattr(self, name) + getattr(other, name) for name in _NAMES))


_NAMES = tuple(field.name for field in fields(Gift))
Key = tuple[int, Hardware]  # member id and hardware
Gifts = Mapping[Key, Gift]


@dataclass(frozen=True)
class Giving:
    """The sums by member and hardware at one point in time, including cached sums."""

    read_at: float  # time of the last full read
    settled_step: int  # last step included in `settled`
    settled: Gifts
    gifts: Gifts
    good_until: float = 0.0  # Unix time until which the sums are reused; a slow read extends it

    def by_member(self) -> dict[int, Gift]:
        """Return the sums of each member, by member id."""
        return folded(self.gifts, lambda key: key[0])

    def by_hardware(self) -> dict[Hardware, Gift]:
        """Return the sums of each kind of hardware."""
        return folded(self.gifts, lambda key: key[1])


def read_giving(
    session: Session, before: Giving | None, newest_step: int, now: float, timer: Callable[[], float] = time.monotonic
) -> Giving:
    """Return current sums, or slightly older ones if reads are slow; `before` is the last result.

    With thousands of devices, the recent steps alone have about a million reports.
    """
    if before is not None and now < before.good_until:
        return before
    began = timer()
    found = _read_giving(session, before, newest_step, now)
    took_s = timer() - began
    return replace(found, good_until=now + REST * took_s) if took_s > LITTLE_S else found


def _read_giving(session: Session, before: Giving | None, newest_step: int, now: float) -> Giving:
    settled_step = max(0, newest_step - LATE_STEPS)
    if before is None or settled_step < before.settled_step:
        before = Giving(now, 0, {}, {})
    settled: Gifts = before.settled
    if settled_step > before.settled_step:
        settled = added(settled, read_gifts(session, before.settled_step, settled_step))
    return Giving(before.read_at, settled_step, settled, added(settled, read_gifts(session, settled_step)))


def read_gifts(session: Session, after: int = 0, until: int | None = None) -> dict[Key, Gift]:
    """Sum all reports except the keeper's for the steps after `after`, up to `until` if given."""
    within = Report.step > after if until is None else and_(Report.step > after, Report.step <= until)
    found: dict[Key, Gift] = {}
    for member, said, *sums in session.execute(_query().where(within)):
        key = (member, hardware_of(said or ""))
        found[key] = found.get(key, Gift()) + Gift(*sums)
    return found


def _query() -> Select[Any]:
    def counting(value: Any) -> Any:
        return func.sum(case((Report.superseded, 0), else_=value))

    sums = {
        "samples": counting(func.coalesce(Report.counted, 0)),
        "pending_samples": counting(case((Report.counted.is_(None), Report.samples), else_=0)),
        "averaged_bytes": counting(Report.averaged_bytes),
        "elapsed_s": counting(Report.elapsed_s),
        "data_wait_s": counting(Report.data_wait_s),
        "undone_s": func.sum(case((Report.superseded, Report.elapsed_s), else_=0)),
    }
    return (
        select(Device.member_id, DeviceSession.hardware, *(sums[name] for name in _NAMES))
        .select_from(Report)
        .join(Device, Device.id == Report.device_id)
        .outerjoin(DeviceSession, DeviceSession.id == Report.session_id)
        .where(Device.role != KEEPER_ROLE)
        .group_by(Device.member_id, DeviceSession.hardware)
    )


def added(first: Mapping[Any, Gift], second: Mapping[Any, Gift]) -> dict[Any, Gift]:
    """Add two tables of sums, key by key."""
    nothing = Gift()
    return {key: first.get(key, nothing) + second.get(key, nothing) for key in {**first, **second}}


def folded(gifts: Gifts, group: Callable[[Key], Any]) -> dict[Any, Gift]:
    """Sum all entries that `group` maps to the same value."""
    found: dict[Any, Gift] = {}
    for key, gift in gifts.items():
        found[group(key)] = found.get(group(key), Gift()) + gift
    return found


def gifts_by_member(session: Session) -> dict[int, Gift]:
    """Return the sums of each member, by member id, computed from the daily sums."""
    query = (
        select(
            Device.member_id,
            func.sum(DailyShare.counted),
            func.sum(DailyShare.pending),
            func.sum(DailyShare.averaged_bytes),
            func.sum(DailyShare.elapsed_s),
            func.sum(DailyShare.data_wait_s),
        )
        .join(Device, Device.id == DailyShare.device_id)
        .group_by(Device.member_id)
    )
    rows = session.execute(query)
    return {
        member: Gift(int(counted), int(pending), int(averaged_bytes), elapsed_s, data_wait_s)
        for member, counted, pending, averaged_bytes, elapsed_s, data_wait_s in rows
    }


class LedgerReader:
    """Read-only access to a run's ledger."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        self.recent_contributions = Costly(self.contributions)  # cached; slightly out of date in a long run

    def current_era(self) -> int:
        """Return the current era, which is the number of rewinds to a checkpoint so far."""
        with self._database() as session:
            return current_era(session)

    def last_counting_step(self, era: int) -> int | None:
        """Return the last step of `era` not undone by a later era; None for the current era."""
        with self._database() as session:
            return last_counting_step(session, era)

    def last_step(self) -> int:
        """Return the highest reported step; 0 before the first report."""
        with self._database() as session:
            return session.scalar(select(func.max(Step.step))) or 0

    def last_seq(self, device_id: str) -> int:
        """Return a device's highest sequence number over reports and lost samples; 0 if none."""
        numbers = (
            select(func.max(Report.seq)).where(Report.device_id == device_id),
            select(LossMark.seq).where(LossMark.device_id == device_id),
        )
        with self._database() as session:
            return max(session.scalar(query) or 0 for query in numbers)

    def last_known_step(self) -> int:
        """Return the highest step with a report or a receipt; receipts may precede reports."""
        with self._database() as session:
            return max(session.scalar(select(func.max(column))) or 0 for column in (Step.step, Receipt.step))

    def steps(self, after: int = 0) -> list[StepRow]:
        """Return all steps after step `after`, in order."""
        columns = (Step.step, Step.samples, Step.loss_sum, Step.loss_samples, Step.devices, Step.completed_at)
        query = select(*columns, Step.target_batch_size).where(Step.step > after).order_by(Step.step)
        with self._database() as session:  # selects columns, because loading ORM objects takes a second in a long run
            return [
                StepRow(
                    step=step,
                    samples=samples,
                    loss=loss_sum / loss_samples if loss_samples else None,
                    devices=devices,
                    completed_at=completed_at,
                    target_batch_size=target,
                )
                for step, samples, loss_sum, loss_samples, devices, completed_at, target in session.execute(query)
            ]

    def contributions(self, gifts: Mapping[int, Gift] | None = None) -> list[Contribution]:
        """Return the contributions of all members with a device except the keeper, largest first.

        `gifts` are the members' sums by member id, if already known.
        """
        now = self._clock()
        present = (
            select(
                Member.id,
                Member.name,
                func.count(Device.id.distinct()),
                func.count(Device.id.distinct()).filter(is_online(now)),
                func.max(DeviceSession.last_seen_at),
                func.sum(DeviceSession.samples_per_second).filter(is_online(now)),
            )
            .join(Device.member)
            .outerjoin(DeviceSession, DeviceSession.device_id == Device.id)
            .where(Device.role != KEEPER_ROLE)
            .group_by(Member.id, Member.name)
        )
        with self._database() as session:
            given = gifts_by_member(session) if gifts is None else gifts
            rows = session.execute(present).all()
        found = [
            _contribution(given.get(member_id, Gift()), member, devices, online, last_seen_at, rate)
            for member_id, member, devices, online, last_seen_at, rate in rows
        ]
        return sorted(found, key=lambda row: (-row.samples, -row.averaged_bytes, row.member))

    def contributions_after(self, step: int) -> list[Contribution]:
        """Return each member's contribution to the steps after `step`."""
        with self._database() as session:
            gifts = read_gifts(session, step)
        return self.contributions(folded(gifts, lambda key: key[0]))

    def standing(self, member: str) -> tuple[int, int, int]:
        """Return a member's samples and rank (from 1; ties share a rank), and the number of members."""
        samples = {row.member: row.samples for row in self.contributions()}
        own = samples.get(member, 0)
        return own, 1 + sum(other > own for other in samples.values()), len(samples)


def _contribution(
    gift: Gift, member: str, devices: int, online: int, last_seen_at: float | None, rate: float | None
) -> Contribution:
    return Contribution(
        member=member,
        samples=int(gift.samples),
        devices=devices,
        online=online,
        last_seen_at=last_seen_at,
        samples_per_second=rate or 0.0,
        elapsed_s=gift.elapsed_s,
        data_wait_s=gift.data_wait_s,
        averaged_bytes=int(gift.averaged_bytes),
        pending_samples=int(gift.pending_samples),
    )
