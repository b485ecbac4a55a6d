"""Contributions of members and of kinds of hardware, summed over their reports.

A run has hundreds of thousands of reports, and the dashboard refreshes every second. So all reports are read once, and
then only those of the newest steps; the sums of older steps are kept. A return to a checkpoint begins an era and
changes older sums, and so may a very late report: every 15 minutes all reports are read again.

The kind of hardware follows from a session's description of its machine: `cuda:0,1, 4 cores`, `tpu, 96 cores`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from sqlalchemy import Select, and_, case, func, select
from sqlalchemy.orm import Session

from coordinator.store.models import KEEPER_ROLE, DailyShare, Device, Report, Session as Stay
from coordinator.throttling.cost_cache import LITTLE_S, REST

Kind = Literal["gpu", "tpu", "apple", "cpu", "other"]
KINDS: tuple[Kind, ...] = ("gpu", "tpu", "apple", "cpu", "other")
_SEVERAL = re.compile(r"\b(\d{1,2}) × cuda\b")  # as workers describe them: `2 × cuda (Tesla T4, 15 GiB)`
_CUDA = re.compile(r"cuda(?::(\d+(?:,\d+)*))?(?![\w])")
LATE_STEPS = 200  # the newest, whose reports and receipts still come
READ_WHOLE_S = 900.0  # so often all is read again


@dataclass(frozen=True)
class Hardware:
    """The kind and number of processors that a machine trains on."""

    kind: Kind
    accelerators: int  # GPUs that it trains on; 1 for whatever else computes


def hardware_of(said: str) -> Hardware:
    """The kind of a machine, by a session's own words; peers may write anything there."""
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
    """Sums over reports; of undone steps only the time counts, which was given all the same."""

    samples: int = 0  # that receipts confirm
    pending_samples: int = 0  # that nothing confirms or denies
    averaged_bytes: int = 0
    elapsed_s: float = 0.0  # that machines trained
    data_wait_s: float = 0.0  # of it, waiting for data
    undone_s: float = 0.0  # that machines trained for steps which were undone

    def __add__(self, other: Gift) -> Gift:
        return Gift(*(getattr(self, name) + getattr(other, name) for name in _NAMES))


_NAMES = tuple(field.name for field in fields(Gift))
Key = tuple[int, Hardware]  # member's id, and what a session said of its machine
Gifts = Mapping[Key, Gift]


@dataclass(frozen=True)
class Giving:
    """All gifts at a moment, and the part of them that is settled."""

    read_at: float  # when all was read
    settled_step: int  # up to here `settled` goes
    settled: Gifts
    gifts: Gifts
    good_until: float = 0.0  # what took long to read is read less often

    def by_member(self) -> dict[int, Gift]:
        """Member's id -> what all the member's machines gave."""
        return folded(self.gifts, lambda key: key[0])

    def by_hardware(self) -> dict[Hardware, Gift]:
        """Hardware -> what all machines of this kind gave."""
        return folded(self.gifts, lambda key: key[1])


def read_giving(
    session: Session,
    before: Giving | None,
    newest_step: int,
    now: float,
    timer: Callable[[], float] = time.monotonic,
) -> Giving:
    """The gifts of now, or of a while ago where reading them takes long; `before` is what was read last, None: nothing.

    With thousands of devices the newest steps alone have a million reports.
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
    """The gifts in the steps after one, and until another if that is given; without the keeper's."""
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
        select(Device.member_id, Stay.hardware, *(sums[name] for name in _NAMES))
        .select_from(Report)
        .join(Device, Device.id == Report.device_id)
        .outerjoin(Stay, Stay.id == Report.session_id)
        .where(Device.role != KEEPER_ROLE)
        .group_by(Device.member_id, Stay.hardware)
    )


def added(first: Mapping[Any, Gift], second: Mapping[Any, Gift]) -> dict[Any, Gift]:
    """The sums of both."""
    nothing = Gift()
    return {key: first.get(key, nothing) + second.get(key, nothing) for key in {**first, **second}}


def folded(gifts: Gifts, group: Callable[[Key], Any]) -> dict[Any, Gift]:
    """The sums of all that belong to the same group."""
    found: dict[Any, Gift] = {}
    for key, gift in gifts.items():
        found[group(key)] = found.get(group(key), Gift()) + gift
    return found


def gifts_by_member(session: Session) -> dict[int, Gift]:
    """Member's id -> what all the member's devices gave, by the sums of their days (`coordinator.ledger.shares`)."""
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
