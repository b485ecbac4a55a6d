"""Erasure of a member: a pseudonym replaces the name in all tables; the devices remain revoked.

Rows of devices and revocations contain keys but no names; they are kept to reject old tokens.
Copies elsewhere (logs, backups, copied checkpoints) cannot be changed.
"""

from __future__ import annotations

import re

from sqlalchemy import delete, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from coordinator.members.membership import Membership, member_name
from coordinator.members.names import find_member
from coordinator.store.engine import Database
from coordinator.store.models import (
    Account,
    AllowedEntry,
    AuditEntry,
    Device,
    DeviceLogin,
    DeviceSession,
    Invite,
    Member,
    Naming,
    Refusal,
    RelayOffer,
    Revocation,
    StoredSuspicion,
)

REASON = "erased"
_TEXTS: tuple[InstrumentedAttribute[str], ...] = (
    Refusal.reason,
    Revocation.reason,
    Member.revoked_reason,
    AuditEntry.subject,
    AuditEntry.detail,
    StoredSuspicion.detail,
)


def erase(database: Database, membership: Membership, name: str) -> str:
    """Revoke a member and erase the name; the samples remain under the returned pseudonym.

    Raises `ConfigError` for an unknown name. If a call fails midway, repeat the call.
    """
    name = member_name(name)
    membership.revoke(name, REASON)

    def forget(session: Session) -> str:
        member = find_member(session, name)
        pseudonym = _pseudonym(session, member)
        shown = member.display_name
        member.name, member.display_name, member.revoked_reason = pseudonym, None, REASON
        session.flush()
        devices = select(Device.id).where(Device.member_id == member.id)
        session.execute(update(DeviceSession).where(DeviceSession.device_id.in_(devices)).values(hardware=""))
        stays = select(DeviceSession.id).where(DeviceSession.device_id.in_(devices))
        session.execute(delete(RelayOffer).where(RelayOffer.session_id.in_(stays)))
        session.execute(delete(Invite).where(Invite.member_id == member.id, Invite.used_at.is_(None)))
        session.execute(delete(Naming).where(Naming.member_id == member.id))
        _forget_accounts(session, member)
        for old in filter(None, (name, shown)):
            _replace_everywhere(session, old, pseudonym)
        return pseudonym

    return database.transact(forget)


def _forget_accounts(session: Session, member: Member) -> None:
    """Delete the member's provider accounts, with their logins and allowlist entries."""
    accounts = select(Account.id).where(Account.member_id == member.id)
    session.execute(
        delete(AllowedEntry).where((AllowedEntry.member_id == member.id) | AllowedEntry.account_id.in_(accounts))
    )
    session.execute(delete(DeviceLogin).where(DeviceLogin.account_id.in_(accounts)))
    session.execute(delete(Account).where(Account.member_id == member.id))


def _pseudonym(session: Session, member: Member) -> str:
    """Return the member's pseudonym, which is stable and differs from all other names."""
    pseudonym = f"erased-{member.id}"
    while session.scalar(select(Member.id).where(Member.name == pseudonym, Member.id != member.id)) is not None:
        pseudonym += "-"
    return pseudonym


def _replace_everywhere(session: Session, old: str, new: str) -> None:
    """Replace a name in all text columns, both verbatim and as escaped by `repr`."""
    for spelling in sorted({old, repr(old)[1:-1]}, key=len, reverse=True):
        whole_name = re.compile(rf"(?<!\w){re.escape(spelling)}(?!\w)")
        for column in _TEXTS:
            for row in session.scalars(select(column.class_).where(column.contains(spelling, autoescape=True))):
                setattr(row, column.key, whole_name.sub(lambda _: new, getattr(row, column.key)))
