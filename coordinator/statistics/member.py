"""Statistics for a member's page: samples per day, lost samples by cause, and contributed steps.

Contributed steps are merged into ranges (`step_ranges`), to limit the number of marks on a chart. A
certificate states the member's contribution and is signed with the authority's key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from sqlalchemy import func, select

from auth.certificates import MAX_DEVICES, Certificate, SignedCertificate, sign_certificate
from auth.errors import RequestError
from auth.keys import AuthorityKey
from coordinator.statistics.people import Given, midnight, people
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, DailyShare, Device, LostSamples, Report

Range = tuple[int, int]  # first and last step of a range, inclusive
UNCONFIRMED = "unconfirmed"  # cause of a loss: receipts do not confirm all claimed samples
RETURNED = "returned"  # cause of a loss: a rewind undid the step
MOST_DAYS = 3660
MOST_RANGES = 400


@dataclass
class DayFacts:
    """A member's contributions on one UTC day, over all devices."""

    samples: int = 0  # confirmed samples
    pending_samples: int = 0  # samples without any receipt so far
    elapsed_s: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)  # lost samples by cause, see `LossFacts`


@dataclass(frozen=True)
class LossFacts:
    """The samples lost to one cause: a `LostCause`, `UNCONFIRMED` or `RETURNED`."""

    cause: str
    samples: int
    times: int | None  # number of losses, or None if not recorded for this cause
    last_day: float  # start of the last day with such a loss (Unix time)
    last_step: int | None


@dataclass(frozen=True)
class StepsFacts:
    """A member's steps with confirmed samples, for marks on the loss curve."""

    count: int  # number of steps with confirmed samples
    first: int | None
    last: int | None
    ranges: tuple[Range, ...]


def days_of(database: Database, number: int) -> Mapping[int, DayFacts]:
    """Read a member's latest `MOST_DAYS` active days, in order; empty for an unknown member."""
    mine = (Device.member_id == number) & (Device.role != KEEPER_ROLE)
    shares = select(DailyShare).join(Device, Device.id == DailyShare.device_id).where(mine)
    lost = select(LostSamples).join(Device, Device.id == LostSamples.device_id).where(mine)
    found: defaultdict[int, DayFacts] = defaultdict(DayFacts)
    with database() as session:
        for share in session.scalars(shares):
            day = found[share.day]
            day.samples += share.counted
            day.pending_samples += share.pending
            day.elapsed_s += share.elapsed_s
            denied = share.claimed - share.counted - share.pending
            day.lost.update({UNCONFIRMED: denied, RETURNED: share.undone})
        for loss in session.scalars(lost):
            found[loss.day].lost[loss.cause] += loss.samples
    return {day: found[day] for day in sorted(found)[-MOST_DAYS:]}


def losses_of(database: Database, number: int, days: Mapping[int, DayFacts]) -> list[LossFacts]:
    """Return the lost samples by cause, most samples first; `days` is the result of `days_of`."""
    query = (
        select(LostSamples.cause, func.sum(LostSamples.times), func.max(LostSamples.last_step))
        .join(Device, Device.id == LostSamples.device_id)
        .where(Device.member_id == number)
        .group_by(LostSamples.cause)
    )
    with database() as session:
        told = {cause: (int(times), step) for cause, times, step in session.execute(query)}
    samples: Counter[str] = sum((day.lost for day in days.values()), Counter[str]())
    found = []
    for cause, lost in samples.most_common():
        times, step = told.get(cause, (None, None))
        last_day = midnight(max(day for day, facts in days.items() if facts.lost[cause]))
        found.append(LossFacts(cause, lost, times, last_day, step))
    return found


def steps_of(database: Database, number: int) -> StepsFacts:
    """Read the steps for which the member has confirmed samples."""
    query = (
        select(Report.step)
        .join(Device, Device.id == Report.device_id)
        .where(Device.member_id == number, Report.superseded.is_(False), Report.counted > 0)
        .distinct()
        .order_by(Report.step)
    )
    with database() as session:
        steps = session.scalars(query).all()
    ranges = tuple(step_ranges(steps, MOST_RANGES))
    return StepsFacts(len(steps), steps[0] if steps else None, steps[-1] if steps else None, ranges)


def step_ranges(steps: Iterable[int], most: int) -> list[Range]:
    """Merge steps into at most `most` ranges, closing the narrowest gaps if necessary."""
    ranges: list[Range] = []
    for step in steps:  # steps are ascending, possibly with duplicates
        if ranges and step <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(step, ranges[-1][1]))
        else:
            ranges.append((step, step))
    return _joined(ranges, most)


def _joined(ranges: list[Range], most: int) -> list[Range]:
    if len(ranges) <= most:
        return ranges
    gaps = sorted(range(1, len(ranges)), key=lambda place: ranges[place - 1][1] - ranges[place][0])  # widest gap first
    begins = sorted([0, *gaps[: most - 1]])
    return [
        (ranges[begin][0], ranges[end - 1][1]) for begin, end in zip(begins, [*begins[1:], len(ranges)], strict=True)
    ]


def certify(database: Database, authority: AuthorityKey, run: str, number: int, now: float) -> SignedCertificate:
    """Sign a member's certificate. Raises `RequestError` for a member without a contribution."""
    found = people(database, now, number=number)
    given = found[0].given() if found else Given()
    if not given.days:
        raise RequestError(f"Member {number} has no contribution to certify yet.")
    certificate = Certificate(
        run=run,
        member=found[0].name,
        number=number,
        samples=given.samples,
        steps=steps_of(database, number).count,
        active_days=len(given.days),
        first_day=_date(min(given.days)),
        last_day=_date(max(given.days)),
        training_s=round(given.elapsed_s),
        averaged_bytes=given.averaged_bytes,
        devices=_pseudonyms(database, number),
        issued_at=int(now),
    )
    return sign_certificate(authority, certificate)


def _pseudonyms(database: Database, number: int) -> tuple[str, ...]:
    mine = select(Device.receipt_key).where(
        Device.member_id == number, Device.role != KEEPER_ROLE, Device.receipt_key.is_not(None)
    )
    with database() as session:
        return tuple(filter(None, session.scalars(mine.order_by(Device.number.desc()).limit(MAX_DEVICES))))


def _date(day: int) -> str:
    return datetime.fromtimestamp(midnight(day), timezone.utc).date().isoformat()
