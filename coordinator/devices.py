"""A member's devices: the operator's list of them, how one is found and shut out, and how many may be active.

What decides works inside the transactions of `coordinator.membership`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError, DeviceLimitError, RevokedError
from coordinator.store.engine import Sessions
from coordinator.store.models import Device, Member, Revocation
from coordinator.store.models import Session as Stay

SHORT_ID_CHARS = 8
MIN_PREFIX_CHARS, MAX_ID_CHARS = 4, 32
KEEPER_ROLE = "keeper"


@dataclass(frozen=True)
class DeviceRow:
    """One member's machine, for the operator's list; times in Unix seconds."""

    device_id: str
    member: str
    role: str
    created_at: float  # when it joined first
    last_seen_at: float | None
    hardware: str  # as its newest session says
    revoked_at: float | None
    revoked_reason: str

    @property
    def short_id(self) -> str:
        """What people type."""
        return self.device_id[:SHORT_ID_CHARS]


def device_rows(sessions: Sessions, member: str = "", limit: int | None = None) -> list[DeviceRow]:
    """The devices of a member, or of everybody but the keeper, the newest first."""
    stays = select(Stay).where(Stay.device_id == Device.id)
    seen_at = stays.with_only_columns(func.max(Stay.last_seen_at)).scalar_subquery()
    newest = stays.with_only_columns(Stay.hardware).order_by(Stay.last_seen_at.desc()).limit(1).scalar_subquery()
    query = (
        select(Device, Member.name, seen_at, newest, Revocation.reason)
        .join(Device.member)
        .outerjoin(Revocation, Revocation.device_id == Device.id)
        .where(Device.role != KEEPER_ROLE)
        .order_by(Device.number.desc())
        .limit(limit)
    )
    with sessions() as session:
        found = session.execute(query.where(Member.name == member) if member else query)
        return [
            DeviceRow(row.id, name, row.role, row.created_at, seen, hardware or "", row.revoked_at, reason or "")
            for row, name, seen, hardware, reason in found
        ]


def device_act(device_id: str, reason: str) -> str:
    """What the audit log says of the revocation of one device."""
    return f"{device_id.strip()[:MAX_ID_CHARS]} {reason}".strip()


def find_device(session: Session, member: Member, beginning: str) -> Device:
    """The member's device whose id begins so; raises `ConfigError` unless there is exactly one."""
    beginning = beginning.strip().lower()
    if len(beginning) < MIN_PREFIX_CHARS:
        raise ConfigError(f"The device id {beginning!r} is too short: give at least {MIN_PREFIX_CHARS} characters.")
    devices = session.scalars(select(Device).where(Device.member_id == member.id))
    found = [device for device in devices if device.id.startswith(beginning)]
    if not found:
        raise ConfigError(
            f"{member.name} has no device {beginning!r:.80}: `manyhands coordinator devices` lists what there is."
        )
    if len(found) > 1:
        raise ConfigError(f"{len(found)} devices of {member.name} begin with {beginning!r:.80}: give more of the id.")
    return found[0]


def shut_out(session: Session, device: Device, reason: str, now: float) -> bool:
    """Put a device on the revocation list for good; returns whether it was not there already.

    The entry's number is taken here and not by a database's sequence, whose numbers may appear out of order: a list
    that has number 6 must not be lacking number 5. If another takes the number first, the transaction runs again.
    """
    if device.revoked_at is not None:
        return False
    device.revoked_at = now
    number = (session.scalar(select(func.max(Revocation.id))) or 0) + 1
    session.add(Revocation(id=number, device_id=device.id, peer_id=device.peer_id, at=now, reason=reason))
    session.flush()
    return True


def revocation_of(member: Member, device: Device | None) -> RevokedError | None:
    """What a member or a device is told that was shut out; None for who was not."""
    if member.revoked_at is not None:
        return RevokedError(
            f"{member.name} was removed from this run by its operator{_because(member.revoked_reason)}."
        )
    if device is None or device.revoked_at is None:
        return None
    reason = "" if device.revocation is None else device.revocation.reason
    return RevokedError(
        f"This device of {member.name} was removed from this run by its operator{_because(reason)}. "
        "Another device may join by a new invite code or login."
    )


def require_active(member: Member, device: Device | None = None) -> None:
    """Raise `RevokedError` for who was shut out."""
    error = revocation_of(member, device)
    if error is not None:
        raise error


def require_room(session: Session, member: Member, device: Device | None, most: int, now: float) -> None:
    """Raise `DeviceLimitError` if the device (None: a new one) would be one too many at once.

    A device counts as long as it holds a valid token. The caller has locked the member's row, so no two devices can
    take the last place.
    """
    if device is not None and _is_active(device, now):
        return
    active = session.scalar(
        select(func.count()).where(Device.member_id == member.id, Device.revoked_at.is_(None), Device.token_until > now)
    )
    if (active or 0) >= most:
        raise DeviceLimitError(
            f"{member.name} has {active} devices in this run already, and {most} are allowed at once: stop one and "
            "wait until its access expires, or ask the operator to revoke one or to allow more."
        )


def _is_active(device: Device, now: float) -> bool:
    return device.revoked_at is None and device.token_until is not None and device.token_until > now


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
