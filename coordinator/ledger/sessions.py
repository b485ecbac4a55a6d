"""Device sessions and their last reported states, which the service updates every second."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from sqlalchemy import ColumnElement, String, Table, and_, bindparam, delete, func, select, update

from auth.errors import RequestError
from coordinator.store.engine import Database
from coordinator.store.models import Device, DeviceSession, Member
from coordinator.store.notify import Topic, tell
from coordinator.store.service_models import RelayOffer
from peer.reporting.messages import MAX_SAMPLES_PER_SECOND

ONLINE_S = 15.0  # maximum age of an online session's last message
RECENT_S = 600.0  # devices seen within this time count as recent, to detect mass departures
APART = "apart"  # state of a device that trains or assists but does not see the keeper in the swarm
STATES = frozenset(
    {"starting", "syncing", "training", "assisting", "averaging", "paused", "stopping", "standby", APART}
)
MAX_STEP = 2**31 - 1
MAX_SAMPLES = 10**9
_STAYS = cast(Table, DeviceSession.__table__)


@dataclass(frozen=True)
class OnlineSession:
    """A connected device with its last reported state."""

    session_id: str
    member: str
    device_id: str
    role: str
    hardware: str
    state: str
    step: int
    own_samples: int
    samples_per_second: float
    started_at: float
    last_seen_at: float


def is_online(now: float) -> ColumnElement[bool]:
    """Return the SQL condition for a session that is online at `now`."""
    return and_(DeviceSession.ended_at.is_(None), DeviceSession.last_seen_at > now - ONLINE_S)


def open_session(database: Database, device_id: str, hardware: str, software_version: str, now: float) -> str:
    """Open a session for a device and return its id; end sessions left open by lost connections."""
    session_id = secrets.token_hex(16)
    with database.begin() as session:
        turn = select(Device.id).where(Device.id == device_id).with_for_update(key_share=True)
        session.execute(turn)  # locks the device against a concurrent session on another replica
        left_open = update(DeviceSession).where(DeviceSession.device_id == device_id, DeviceSession.ended_at.is_(None))
        ended = session.scalars(left_open.values(ended_at=DeviceSession.last_seen_at).returning(DeviceSession.id)).all()
        if ended:  # another replica may be serving one of these sessions
            session.execute(delete(RelayOffer).where(RelayOffer.session_id.in_(ended)))
            tell(session, Topic.SESSIONS)
        session.add(
            DeviceSession(
                id=session_id,
                device_id=device_id,
                started_at=now,
                last_seen_at=now,
                hardware=_printable(hardware, 200),
                software_version=_printable(software_version, 32),
            )
        )
    return session_id


@dataclass(frozen=True)
class PresenceClaim:
    """A device's reported state, after a plausibility check."""

    step: int
    own_samples: int
    samples_per_second: float
    state: str
    last_seen_at: float  # Unix time on the coordinator's clock
    hardware: str | None = None  # hardware used for training, or None if unchanged


def checked_claim(
    step: int, own_samples: int, samples_per_second: float, state: str, now: float, device: str = ""
) -> PresenceClaim:
    """Check a reported state; `device` is the hardware. Raises `RequestError` if implausible."""
    if state not in STATES:
        raise RequestError(f"`state` ({state!r:.40}) must be one of {', '.join(sorted(STATES))}.")
    _require_range("step", step, MAX_STEP)
    _require_range("own_samples", own_samples, MAX_SAMPLES)
    _require_range("samples_per_second", samples_per_second, MAX_SAMPLES_PER_SECOND)
    hardware = _printable(device, 200) if device else None
    return PresenceClaim(step, own_samples, samples_per_second, state, now, hardware)


def touch_sessions(database: Database, claims: Mapping[str, PresenceClaim]) -> None:
    """Store the reported states of sessions in one transaction; skip ended sessions."""
    open_still = update(_STAYS).where(_STAYS.c.id == bindparam("stay"), _STAYS.c.ended_at.is_(None))
    names: dict[str, Any] = {field.name: bindparam(field.name) for field in fields(PresenceClaim)}
    names["hardware"] = func.coalesce(bindparam("hardware", type_=String), _STAYS.c.hardware)
    in_order = sorted(claims.items())  # prevents deadlocks between replicas
    rows = [{"stay": session_id, **asdict(claim)} for session_id, claim in in_order]
    database.transact(lambda session: session.connection().execute(open_still.values(names), rows))


def close_session(database: Database, session_id: str, now: float) -> None:
    """End a device's session."""
    with database.begin() as session:
        ends = update(DeviceSession).where(DeviceSession.id == session_id, DeviceSession.ended_at.is_(None))
        session.execute(ends.values(ended_at=now, last_seen_at=now))
        session.execute(delete(RelayOffer).where(RelayOffer.session_id == session_id))


def online_sessions(database: Database, now: float) -> list[OnlineSession]:
    """Return all online sessions, ordered by start time."""
    query = (
        select(
            DeviceSession.id,
            Member.name,
            DeviceSession.device_id,
            Device.role,
            DeviceSession.hardware,
            DeviceSession.state,
            DeviceSession.step,
            DeviceSession.own_samples,
            DeviceSession.samples_per_second,
            DeviceSession.started_at,
            DeviceSession.last_seen_at,
        )
        .join(DeviceSession.device)
        .join(Device.member)
        .where(is_online(now))
        .order_by(DeviceSession.started_at)
    )
    with database() as session:
        return [OnlineSession(*row) for row in session.execute(query)]


def recent_devices(database: Database, now: float) -> int:
    """Return the number of devices that were online within the last ten minutes."""
    with database() as session:
        devices = select(func.count(DeviceSession.device_id.distinct()))
        return session.scalar(devices.where(DeviceSession.last_seen_at > now - RECENT_S)) or 0


def _require_range(name: str, value: float, most: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= most):
        raise RequestError(f"`{name}` ({value}) must lie between 0 and {most:g}.")


def _printable(text: str, most: int) -> str:
    """Return untrusted text without control characters, truncated to `most` characters."""
    return "".join(character for character in text if character.isprintable())[:most]
