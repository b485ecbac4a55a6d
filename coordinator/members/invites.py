"""One-time invite codes: validity, roles and redemption.

Functions run inside transactions of `coordinator.members.membership`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from auth.errors import ConfigError, ExpiredInviteError, RequestError, UnknownInviteError, UsedInviteError
from auth.invite_codes import hash_invite_code
from auth.tokens import Role
from coordinator.store.models import Account, Device, DeviceLogin, Invite, Member

DAY_S = 86_400.0
MAX_INVITE_DAYS = 365.0
MAX_INVITES_AT_ONCE = 1000
# An invite for a role also permits all lower roles.
ROLE_RANKS: dict[str, int] = {"observer": 0, "auxiliary": 1, "trainer": 2}


def check_invitation(role: str, days: float, devices: int) -> None:
    """Raise `ConfigError` if the role, the validity in days or the number of devices is invalid."""
    if role not in ROLE_RANKS:
        raise ConfigError(f"The role {role!r} cannot be invited; choose one of {', '.join(ROLE_RANKS)}.")
    if not 0 < days <= MAX_INVITE_DAYS:
        raise ConfigError(f"An invite is valid for up to {MAX_INVITE_DAYS:g} days, not {days:g}.")
    if not 1 <= devices <= MAX_INVITES_AT_ONCE:
        raise ConfigError(f"Between 1 and {MAX_INVITES_AT_ONCE} devices can be invited at once, not {devices}.")


def add_invites(session: Session, member: Member, role: str, days: float, codes: Iterable[str], now: float) -> None:
    """Store the hashes of a member's new invite codes."""
    session.add_all(
        Invite(
            member_id=member.id,
            code_sha256=hash_invite_code(code),
            role=role,
            created_at=now,
            expires_at=now + days * DAY_S,
        )
        for code in codes
    )


def usable_invite(session: Session, code: str, device: Device | None, now: float) -> Invite | None:
    """Return the invite that a device (None: a new one) may redeem. Raises an error for an invalid code.

    The result is None if nothing needs to be redeemed: the device has already redeemed this code
    (a reply may have been lost), or it already has the rights that the code grants.
    """
    invite = session.scalar(select(Invite).where(Invite.code_sha256 == hash_invite_code(code)))
    if invite is None:
        raise UnknownInviteError("This invite code is not known here: check it for typing errors.")
    if device is not None and invite.used_by_device_id == device.id:
        return None
    if invite.used_at is not None:
        raise _used()
    if now >= invite.expires_at:
        raise ExpiredInviteError("This invite code has expired: ask the run's operator for a new one.")
    if device is None:
        return invite
    if device.member_id != invite.member_id:
        raise RequestError(f"This device belongs to {device.member.name} already; the code is for somebody else.")
    return invite if ROLE_RANKS[invite.role] > _allowed_rank(session, device) else None


def use_up(session: Session, invite: Invite, device: Device, now: float) -> None:
    """Redeem an invite and set the device's role; of several concurrent attempts, exactly one succeeds."""
    used = session.scalar(
        update(Invite)
        .where(Invite.id == invite.id, Invite.used_at.is_(None))
        .values(used_at=now, used_by_device_id=device.id)
        .returning(Invite.id)
        .execution_options(synchronize_session=False)
    )
    if used is None:
        raise _used()
    device.role = invite.role


def check_role(role: str) -> None:
    """Raise `RequestError` if devices cannot request the role; an empty role is accepted."""
    if role and role not in ROLE_RANKS:
        raise RequestError(f"The role {role!r:.40} cannot be asked for; choose one of {', '.join(ROLE_RANKS)}.")


def take_role(session: Session, device: Device, asked: str) -> Role:
    """Set and return the requested role ("": no change). Raises `RequestError` if not permitted."""
    if asked and device.role != asked:
        if ROLE_RANKS[asked] > _allowed_rank(session, device):
            instead = ", or run `manyhands assist`" if device.role == "auxiliary" else ""
            raise RequestError(
                f"This device was invited as {device.role}, not as {asked}: ask for another invite{instead}."
            )
        device.role = asked
    return cast(Role, device.role)


def _allowed_rank(session: Session, device: Device) -> int:
    """Return the highest rank granted by the device's redeemed codes and accounts, or -1."""
    roles = [*session.scalars(select(Invite.role).where(Invite.used_by_device_id == device.id))]
    by_login = select(Account.role).join(DeviceLogin, DeviceLogin.account_id == Account.id)
    roles += session.scalars(by_login.where(DeviceLogin.device_id == device.id))
    return max((ROLE_RANKS[role] for role in roles), default=-1)


def _used() -> UsedInviteError:
    return UsedInviteError("This invite code was used already: each device needs its own.")
