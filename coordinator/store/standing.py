"""The standing of members and devices: active, quarantined or removed."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from auth.errors import QuarantinedError, RevokedError
from coordinator.store.models import Device, Member, Revocation


def revocation_of(session: Session, member: Member, device: Device | None) -> RevokedError | None:
    """Return an error for a removed member, or a removed or quarantined device; otherwise None."""
    if member.revoked_at is not None:
        return RevokedError(
            f"{member.name} was removed from this run by its operator{_because(member.revoked_reason)}."
        )
    if device is None or (device.revoked_at is None and device.quarantined_at is None):
        return None
    because = _because(newest_reason(session, device.id))
    if device.revoked_at is None:
        return QuarantinedError(
            f"This device of {member.name} is in quarantine{because}: ask the run's operator to lift it, then run "
            "the same command again."
        )
    return RevokedError(
        f"This device of {member.name} was removed from this run by its operator{because}. "
        "Another device may join by a new invite code or login."
    )


def require_active(session: Session, member: Member, device: Device | None = None) -> None:
    """Raise `RevokedError` or `QuarantinedError` unless the member and the device are active."""
    error = revocation_of(session, member, device)
    if error is not None:
        raise error


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def newest_reason(session: Session, device_id: str) -> str:
    """Return the reason in a device's latest revocation entry, or "" if no reason was given."""
    changes = select(Revocation.reason).where(Revocation.device_id == device_id)
    return session.scalar(changes.order_by(Revocation.id.desc()).limit(1)) or ""
