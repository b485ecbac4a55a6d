"""The log of the newest refused requests, limited so that a flood of them cannot fill the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import delete, or_, select, true
from sqlalchemy.orm import Session

from coordinator.store.engine import Database
from coordinator.store.models import Device, Member, Refusal

Kind = Literal[
    "join", "renew", "file", "session", "report", "visit", "login", "suspicion", "quarantine", "receipt", "name"
]
KEPT_REFUSALS = 10_000
MAX_REASON_CHARS = 500


@dataclass(frozen=True)
class RefusalRow:
    """A refused request, with the reason."""

    at: float  # Unix time in seconds
    kind: str
    code: str
    reason: str
    member: str = ""  # owner of the device, if the request was authenticated
    device_id: str = ""


def add_refusal(session: Session, kind: Kind, code: str, reason: str, device_id: str | None, now: float) -> None:
    """Store a refusal, and delete all but the newest `KEPT_REFUSALS`."""
    text = reason[:MAX_REASON_CHARS].replace("\0", "?")  # PostgreSQL rejects NUL in text
    refusal = Refusal(at=now, kind=kind, code=code, reason=text, device_id=device_id)
    session.add(refusal)
    session.flush()
    session.execute(delete(Refusal).where(Refusal.id <= refusal.id - KEPT_REFUSALS))


def newest_refusals(database: Database, limit: int, offset: int = 0, search: str = "") -> list[RefusalRow]:
    """Return up to `limit` refusals, newest first, from `offset`; `search` matches any column."""
    columns = (Member.name, Refusal.device_id, Refusal.kind, Refusal.code, Refusal.reason)
    query = (
        select(Refusal, Member.name)
        .outerjoin(Device, Device.id == Refusal.device_id)
        .outerjoin(Member, Member.id == Device.member_id)
        .where(or_(*(column.icontains(search, autoescape=True) for column in columns)) if search else true())
        .order_by(Refusal.id.desc())
        .offset(offset)
        .limit(limit)
    )
    with database() as session:
        return [
            RefusalRow(row.at, row.kind, row.code, row.reason, member or "", row.device_id or "")
            for row, member in session.execute(query)
        ]
