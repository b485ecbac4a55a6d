"""The allowlist of accounts at identity providers: who may log in, as whom, and in which role.

Functions run inside transactions of `coordinator.members.membership`. An entry with a user name is
bound to the first subject that logs in under it: a later owner of the name is somebody else.
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
    """One parsed entry."""

    provider: str
    kind: str  # "" a user name, "-sub" a subject, "-org" an organisation
    value: str

    @classmethod
    def parse(cls, text: str) -> Entry:
        """Read `hf:alice`, `hf-sub:1234` or `hf-org:neuropark`; raises `ConfigError`."""
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
        """Return whether the entry stands for many accounts."""
        return self.kind == "-org"


@dataclass(frozen=True)
class AllowedRow:
    """One entry, for the operator's list."""

    entry: str
    role: str
    member: str | None
    matched: bool  # whether somebody has logged in by it; False for organisations


def add_entry(session: Session, entry: Entry, role: str, member: Member | None, now: float) -> None:
    """Add an entry; one that exists gets the new role."""
    if role not in ROLE_RANKS:
        raise ConfigError(f"The role {role!r} cannot be allowed; choose one of {', '.join(ROLE_RANKS)}.")
    row = session.scalar(select(AllowedEntry).where(AllowedEntry.entry == str(entry)))
    if row is None:
        row = AllowedEntry(entry=str(entry), created_at=now, account_id=_meant_before(session, entry, member))
    row.role, row.member_id = role, None if member is None else member.id
    session.add(row)


def _meant_before(session: Session, entry: Entry, member: Member | None) -> int | None:
    """Return the member's account of this name, in case a removed entry is added again."""
    if member is None or entry.kind:
        return None
    accounts = session.scalars(select(Account).where(Account.member_id == member.id))
    return next((account.id for account in accounts if normalise(account.label) == str(entry)), None)


def remove_entry(session: Session, entry: Entry) -> None:
    """Remove an entry; devices that it has admitted stay until their member is revoked."""
    row = session.scalar(select(AllowedEntry).where(AllowedEntry.entry == str(entry)))
    if row is None:
        raise ConfigError(f"{entry} is not on the allowlist: `manyhands coordinator allow` shows it.")
    session.delete(row)


def entries(session: Session) -> list[AllowedRow]:
    """List all entries."""
    query = select(AllowedEntry, Member.name).outerjoin(Member, AllowedEntry.member_id == Member.id)
    rows = session.execute(query.order_by(AllowedEntry.entry))
    return [AllowedRow(row.entry, row.role, name, row.account_id is not None) for row, name in rows]


def accounts_by_member(session: Session) -> dict[int, set[str]]:
    """Map members to their names at providers: accounts that have logged in, and entries not used yet."""
    found: dict[int, set[str]] = {}
    for member_id, label in session.execute(select(Account.member_id, Account.label)):
        found.setdefault(member_id, set()).add(label)
    open_entries = select(AllowedEntry.member_id, AllowedEntry.entry).where(AllowedEntry.account_id.is_(None))
    for owner, entry in session.execute(open_entries.where(AllowedEntry.member_id.is_not(None))):
        assert owner is not None
        found.setdefault(owner, set()).add(f"{entry} (not yet)")
    return found


def find_account(session: Session, identity: Identity) -> Account | None:
    """Find the account if it has logged in before, under any user name."""
    query = select(Account).where(Account.issuer == identity.issuer, Account.subject == identity.subject)
    return session.scalar(query)


def matching_entries(session: Session, identity: Identity, account: Account | None) -> list[AllowedEntry]:
    """Return the entries that allow an identity, highest role first; raises `NotAllowedError`.

    A bound entry allows only the account that it is bound to, not a later one of the same name.
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
    """Bind the entries that name one account, rather than an organisation, to this account."""
    for row in matched:
        if not Entry.parse(row.entry).is_organisation:
            row.account_id = account.id
    session.flush()


def record_login(session: Session, device: Device, account: Account) -> None:
    """Record the account by which a device was admitted."""
    session.merge(DeviceLogin(device_id=device.id, account_id=account.id))


def _not_allowed(identity: Identity, recycled: bool) -> NotAllowedError:
    if recycled:
        return NotAllowedError(
            f"You are logged in as {identity.label}, but that name on this run's list belongs to another account: "
            "ask the operator."
        )
    return NotAllowedError(f"You are logged in as {identity.label}, who is not on this run's list: ask the operator.")
