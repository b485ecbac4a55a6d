"""A member's devices: listing, lookup by id, requirements for new devices, and the device limit.

Functions that take a session run inside a transaction of `coordinator.members.membership`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError, DeviceLimitError, QuarantinedError, RequestError
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device, DeviceSession, Member, Revocation

SHORT_ID_CHARS = 8

MIN_PREFIX_CHARS, MAX_ID_CHARS = 4, 32


@dataclass(frozen=True)
class DeviceRow:
    """A device as listed for the operator; times are Unix times in seconds."""

    device_id: str
    member: str
    role: str
    created_at: float  # time of the first join
    last_seen_at: float | None
    hardware: str  # description from the latest session
    revoked_at: float | None
    revoked_reason: str
    quarantined_at: float | None = None
    quarantined_reason: str = ""

    @property
    def short_id(self) -> str:
        """The start of the device's id, as typed by users."""
        return self.device_id[:SHORT_ID_CHARS]


def device_rows(
    database: Database, member: str = "", limit: int | None = None, offset: int = 0, search: str = ""
) -> list[DeviceRow]:
    """Return the devices of `member` ("": all members except the keeper), newest first.

    Skip `offset` rows and return at most `limit` (None: all). With `search`, return only devices
    whose member, id, role or hardware contains this text.
    """
    stays = select(DeviceSession).where(DeviceSession.device_id == Device.id)
    seen_at = stays.with_only_columns(func.max(DeviceSession.last_seen_at)).scalar_subquery()
    newest = (
        stays.with_only_columns(DeviceSession.hardware)
        .order_by(DeviceSession.last_seen_at.desc())
        .limit(1)
        .scalar_subquery()
    )
    changes = select(Revocation.reason).where(Revocation.device_id == Device.id).order_by(Revocation.id.desc())
    query = (
        select(Device, Member.name, seen_at, newest, changes.limit(1).scalar_subquery())
        .join(Device.member)
        .where(Device.role != KEEPER_ROLE)
        .order_by(Device.number.desc())
        .offset(offset)
        .limit(limit)
    )
    if member:
        query = query.where(Member.name == member)
    if search:
        columns = (Member.name, Device.id, Device.role, newest)
        query = query.where(or_(*(column.icontains(search, autoescape=True) for column in columns)))
    with database() as session:
        found = session.execute(query)
        return [
            _device_row(device, name, seen, hardware or "", reason or "")
            for device, name, seen, hardware, reason in found
        ]


def _device_row(device: Device, member: str, seen_at: float | None, hardware: str, reason: str) -> DeviceRow:
    return DeviceRow(
        device_id=device.id,
        member=member,
        role=device.role,
        created_at=device.created_at,
        last_seen_at=seen_at,
        hardware=hardware,
        revoked_at=device.revoked_at,
        revoked_reason="" if device.revoked_at is None else reason,
        quarantined_at=device.quarantined_at,
        quarantined_reason="" if device.quarantined_at is None else reason,
    )


def device_act(device_id: str, reason: str) -> str:
    """Return the audit log's text for an action on one device."""
    return f"{device_id.strip()[:MAX_ID_CHARS]} {reason}".strip()


def find_device(session: Session, member: Member, beginning: str) -> Device:
    """Find a member's device by an id prefix. Raises `ConfigError` unless exactly one matches."""
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


def require_good_standing(session: Session, member: Member) -> None:
    """Raise `QuarantinedError` if the member has a quarantined device: it must not be replaced."""
    quarantined = select(Device.id).where(Device.member_id == member.id, Device.quarantined_at.is_not(None)).limit(1)
    device_id = session.scalar(quarantined)
    if device_id is not None:
        raise QuarantinedError(
            f"{member.name}'s device {device_id[:SHORT_ID_CHARS]} is in quarantine: until the run's operator lifts "
            f"that, {member.name} can bring no further device."
        )


def tokens_until(database: Database) -> float:
    """Return the latest expiration time of all tokens (Unix time), or 0 if there are no tokens."""
    with database() as session:
        return session.scalar(select(func.max(Device.token_until))) or 0.0


def require_room(session: Session, member: Member, device: Device | None, most: int, now: float) -> None:
    """Raise `DeviceLimitError` if the device (None: a new one) would exceed the member's limit.

    Only devices with a valid token count. The caller must have locked the member's row, so that two
    devices cannot both take the last slot.
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


def keep_receipt_key(session: Session, device: Device, receipt_key: str) -> None:
    """Store a device's permanent receipt key. Raises `RequestError` for a second or shared key."""
    if not receipt_key or device.receipt_key == receipt_key:
        return
    if device.receipt_key is not None:
        raise RequestError("This device has signed receipts with another key: join as a new device, with a new invite.")
    if session.scalar(select(Device.id).where(Device.receipt_key == receipt_key)) is not None:
        raise RequestError("The key for receipts is another device's.")
    device.receipt_key = receipt_key
    session.flush()
