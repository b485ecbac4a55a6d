"""Quarantine by hand: who is in it and by whose words, putting a device there, and lifting it.

It is as a revocation, but can be lifted; what puts devices there by itself is `coordinator.suspicions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from auth.errors import ConfigError
from coordinator.devices import SHORT_ID_CHARS, find_device
from coordinator.display_names import find_member
from coordinator.revocations import lift_quarantine, put_in_quarantine
from coordinator.store.engine import Sessions
from coordinator.store.models import Device, Member, Revocation, Suspicion
from coordinator.suspicions import with_proof

SHOWN_WORDS = 50  # of each device, the newest


@dataclass(frozen=True)
class WordRow:
    """What one member's device said of another."""

    at: float  # Unix seconds
    witness: str  # the member; the keeper's own word says `keeper`
    kind: str
    step: int
    detail: str


@dataclass(frozen=True)
class QuarantineRow:
    """A device in quarantine."""

    device_id: str
    member: str
    since: float  # Unix seconds
    reason: str
    actor: str  # `run:keeper`, `run:members`, or the person, as in the audit log
    words: tuple[WordRow, ...]  # said of it, the newest first

    @property
    def short_id(self) -> str:
        """What people type."""
        return self.device_id[:SHORT_ID_CHARS]


def quarantines(sessions: Sessions) -> list[QuarantineRow]:
    """All devices in quarantine, the newest first."""
    with sessions() as session:
        devices = select(Device, Member.name).join(Device.member).where(Device.quarantined_at.is_not(None))
        found = session.execute(devices.order_by(Device.quarantined_at.desc()))
        return [_row(session, device, name) for device, name in found]


def _row(session: Session, device: Device, member: str) -> QuarantineRow:
    changes = select(Revocation).where(Revocation.device_id == device.id).order_by(Revocation.id.desc())
    newest = session.scalars(changes.limit(1)).one()
    words = (
        select(Suspicion, Member.name)
        .join(Device, Device.id == Suspicion.witness_id)
        .join(Member, Member.id == Device.member_id)
        .where(Suspicion.device_id == device.id)
        .order_by(Suspicion.id.desc())
        .limit(SHOWN_WORDS)
    )
    said = tuple(
        WordRow(word.at, witness, word.kind, word.step, with_proof(word.kind, word.detail))
        for word, witness in session.execute(words)
    )
    return QuarantineRow(device.id, member, newest.at, newest.reason, newest.actor, said)


def quarantine_device(sessions: Sessions, name: str, device_id: str, reason: str, actor: str, now: float) -> str:
    """Put one device of a member in quarantine; returns its whole id. Raises `ConfigError`."""

    def put(session: Session) -> str:
        device = find_device(session, find_member(session, name), device_id)
        if device.revoked_at is not None:
            raise ConfigError(f"{name}'s device {device.id} is revoked already, for good.")
        put_in_quarantine(session, device, reason, actor, now)
        return device.id

    return sessions.transact(put)


def release(sessions: Sessions, name: str, device_id: str, actor: str, now: float) -> list[str]:
    """Lift the quarantine of a member's device, or of all (`device_id` empty); returns their whole ids.

    Raises `ConfigError` if there is none.
    """

    def lift(session: Session) -> list[str]:
        member = find_member(session, name)
        devices = [find_device(session, member, device_id)] if device_id else member.devices
        lifted = [device.id for device in devices if lift_quarantine(session, device, actor, now)]
        if not lifted:
            raise ConfigError(f"{name} has no such device in quarantine: `quarantine DIR list` shows who has.")
        return lifted

    return sessions.transact(lift)
