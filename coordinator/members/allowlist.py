"""The allowlist of accounts at identity providers, each with a member and a role.

Functions run inside transactions of `coordinator.members.membership`. An entry with a username is
bound to the first subject that logs in with it, because a username may later change hands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from auth.errors import ConfigError, NotAllowedError
from auth.openid.provider import Identity, normalise
from coordinator.members.invites import ROLE_RANKS
from coordinator.store.models import Account, AllowedEntry, Device, DeviceLogin, Member

_ENTRY = re.compile(r"(?P<provider>[a-z][a-z0-9]{0,15})(?P<kind>|-sub|-org):(?P<value>.{1,255})")


@dataclass(frozen=True)
class Entry:
    """A parsed entry of the allowlist."""

    provider: str
    kind: str  # "": username, "-sub": subject, "-org": organisation
    value: str

    @classmethod
    def parse(cls, text: str) -> Entry:
        """Parse `hf:alice`, `hf-sub:1234` or `hf-org:neuropark`. Raises `ConfigError` if malformed."""
        found = _ENTRY.fullmatch(text.strip())
        if found is None or not found["value"].isprintable():
            raise ConfigError(
                f"{text!r:.80} is no entry: write PROVIDER:USER, PROVIDER-sub:SUBJECT or PROVIDER-org:ORGANISATION."
            )
        value = found["value"] if found["kind"] == "-sub" else normalise(found["value"])
        return cls(found["provider"], found["kind"], value)

    def __str__(self) -> str:
        return f"{self.provider}{self.kind}:{self.value}"

    @property
    def is_organisation(self) -> bool:
        """True if the entry represents many accounts."""
        return self.kind == "-org"


@dataclass(frozen=True)
class AllowedRow:
    """An allowlist entry as listed for the operator."""

    entry: str
    role: str
    member: str | None
    matched: bool  # True if someone has logged in with the entry; False for organisations


def add_entry(session: Session, entry: Entry, role: str, member: Member | None, now: float) -> None:
    """Add an allowlist entry, or change the role and member of an existing one."""
    if role not in ROLE_RANKS:
        raise ConfigError(f"The role {role!r} cannot be allowed; choose one of {', '.join(ROLE_RANKS)}.")
    row = session.scalar(select(AllowedEntry).where(AllowedEntry.entry == str(entry)))
    if row is None:
        row = AllowedEntry(entry=str(entry), created_at=now, account_id=_meant_before(session, entry, member))
    row.role, row.member_id = role, None if member is None else member.id
    session.add(row)


def _meant_before(session: Session, entry: Entry, member: Member | None) -> int | None:
    """Return the id of the member's existing account with the entry's username, or None."""
    if member is None or entry.kind:
        return None
    accounts = session.scalars(select(Account).where(Account.member_id == member.id))
    return next((account.id for account in accounts if normalise(account.label) == str(entry)), None)


def remove_entry(session: Session, entry: Entry) -> None:
    """Remove an allowlist entry; devices admitted by it remain until their member is revoked."""
    row = session.scalar(select(AllowedEntry).where(AllowedEntry.entry == str(entry)))
    if row is None:
        raise ConfigError(f"{entry} is not on the allowlist: `manyhands coordinator allow` shows it.")
    session.delete(row)


def entries(session: Session) -> list[AllowedRow]:
    """Return all entries of the allowlist, sorted alphabetically."""
    query = select(AllowedEntry, Member.name).outerjoin(Member, AllowedEntry.member_id == Member.id)
    rows = session.execute(query.order_by(AllowedEntry.entry))
    return [AllowedRow(row.entry, row.role, name, row.account_id is not None) for row, name in rows]


def accounts_by_member(session: Session) -> dict[int, set[str]]:
    """Return each member's used accounts and unused allowlist entries, by member id."""
    found: dict[int, set[str]] = {}
    for member_id, label in session.execute(select(Account.member_id, Account.label)):
        found.setdefault(member_id, set()).add(label)
    open_entries = select(AllowedEntry.member_id, AllowedEntry.entry).where(AllowedEntry.account_id.is_(None))
    for owner, entry in session.execute(open_entries.where(AllowedEntry.member_id.is_not(None))):
        assert owner is not None
        found.setdefault(owner, set()).add(f"{entry} (not yet)")
    return found


def find_account(session: Session, identity: Identity) -> Account | None:
    """Return the identity's account, regardless of its username, or None before the first login."""
    query = select(Account).where(Account.issuer == identity.issuer, Account.subject == identity.subject)
    return session.scalar(query)


def matching_entries(session: Session, identity: Identity, account: Account | None) -> list[AllowedEntry]:
    """Return the entries for an identity, highest role first. Raises `NotAllowedError` if none match.

    A bound entry allows only the account to which it is bound, not another with the same name.
    """
    names = {f"{identity.provider}-sub:{identity.subject}"}
    names |= {f"{identity.provider}-org:{name}" for name in identity.organisations}
    if identity.username:
        names.add(f"{identity.provider}:{normalise(identity.username)}")
    named = list(session.scalars(select(AllowedEntry).where(AllowedEntry.entry.in_(names))))
    own = None if account is None else account.id
    if own is not None:
        named += session.scalars(
            select(AllowedEntry).where(AllowedEntry.account_id == own, ~AllowedEntry.entry.in_(names))
        )
    allowed = [row for row in named if row.account_id in (None, own)]
    if not allowed:
        raise _not_allowed(identity, recycled=bool(named))
    return sorted(allowed, key=lambda row: ROLE_RANKS[row.role], reverse=True)


def bind(session: Session, matched: list[AllowedEntry], account: Account) -> None:
    """Bind the matched entries, except those of organisations, to the account."""
    for row in matched:
        if not Entry.parse(row.entry).is_organisation:
            row.account_id = account.id
    session.flush()


def record_login(session: Session, device: Device, account: Account) -> None:
    """Record the account with which a device was admitted."""
    session.merge(DeviceLogin(device_id=device.id, account_id=account.id))


def _not_allowed(identity: Identity, recycled: bool) -> NotAllowedError:
    if recycled:
        return NotAllowedError(
            f"You are logged in as {identity.label}, but that name on this run's list belongs to another account: "
            "ask the operator."
        )
    return NotAllowedError(f"You are logged in as {identity.label}, who is not on this run's list: ask the operator.")
