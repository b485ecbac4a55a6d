"""Admission rules for members and their devices, including revocation.

Each rule is evaluated inside one write transaction, so it holds under concurrency. A single
conditional UPDATE ensures that an invite code is used only once.
"""

from __future__ import annotations

import hashlib
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError, ManyhandsError, NotInvitedError, RequestError, RevokedError
from auth.invite_codes import new_invite_code
from auth.keys import AuthorityKey, peer_id_of
from auth.look_alikes import check_new_name, mixed_scripts, skeleton
from auth.openid.provider import Identity
from auth.tokens import AccessToken, Authorities, Role, issue_token, require_usable
from coordinator.members.allowlist import (
    AllowedRow,
    Entry,
    accounts_by_member,
    add_entry,
    bind,
    entries,
    find_account,
    matching_entries,
    record_login,
    remove_entry,
)
from coordinator.members.devices import find_device, keep_receipt_key, require_good_standing, require_room
from coordinator.members.invites import add_invites, check_invitation, check_role, take_role, usable_invite, use_up
from coordinator.members.revocations import SignedRevocations, shut_out
from coordinator.run.authority_key import handover_to
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import KEEPER, KEEPER_ROLE, Account, Device, DeviceSession, Invite, Member
from coordinator.store.refusals import Kind, add_refusal
from coordinator.store.standing import require_active, revocation_of
from peer.config.run import MAX_DEVICES_PER_MEMBER

MAX_NAME_CHARS = 64


@dataclass(frozen=True)
class Grant:
    """The result of an admission: the device's access token and the token's main fields."""

    token_jwt: str
    member: str
    device_id: str
    peer_id: str
    device_number: int  # position in the order of joining; never changes
    role: Role


@dataclass(frozen=True)
class MemberRow:
    """A member as listed for the operator."""

    name: str
    devices: int
    open_invites: int
    created_at: float
    last_seen_at: float | None
    revoked_at: float | None
    revoked_reason: str
    accounts: tuple[str, ...] = ()  # provider accounts that have logged in, or are allowed to


class Membership:
    """The admission rules, applied to the members and devices in the database."""

    def __init__(
        self,
        database: Database,
        authority: AuthorityKey | Callable[[], AuthorityKey],  # a function if the key may be replaced
        run: str,
        token_lifetime_s: float,
        clock: Callable[[], float] = time.time,
        max_devices: int = MAX_DEVICES_PER_MEMBER,
    ) -> None:
        self._database = database
        self._authority = authority if callable(authority) else lambda: authority
        self._run = run
        self._token_lifetime_s = token_lifetime_s
        self._clock = clock
        self._max_devices = max_devices  # maximum number of devices with valid tokens per member
        self._revocations = SignedRevocations(database, self._authority, run, clock)

    @classmethod
    def of_run(cls, directory: RunDirectory, database: Database, clock: Callable[[], float]) -> Membership:
        """Create the rules for a run; the authority key is reread at each use."""
        run, limits = directory.config.run.name, directory.config.membership
        lifetime_s, most = limits.token_lifetime_s, limits.max_devices_per_member
        return cls(database, lambda: directory.authority, run, lifetime_s, clock, most)

    @property
    def authority_public(self) -> bytes:
        """The authority's current public key (Ed25519, 32 raw bytes)."""
        return self._authority().public_bytes

    def invite(self, name: str, role: str = "trainer", days: float = 7, devices: int = 1) -> list[str]:
        """Invite a new or existing member to add `devices` machines; return one code per machine."""
        name = member_name(name)
        check_invitation(role, days, devices)
        codes = [new_invite_code() for _ in range(devices)]

        def add(session: Session) -> list[str]:
            member = self._find_or_add_member(session, name)
            require_active(session, member)
            add_invites(session, member, role, days, codes, self._clock())
            return codes

        return self._database.transact(add)

    def join(self, public_key: bytes, invite_code: str = "", role: str = "", *, receipt_key: str = "") -> Grant:
        """Admit the device with key `public_key`, by an invite code or as a known device.

        A code already used by this device is accepted, because the reply may have been lost.
        `receipt_key` is the device's verified public key for receipts.
        """
        check_role(role)
        peer_id = peer_id_of(public_key)

        def admit(session: Session) -> Grant:
            now = self._clock()
            device = session.scalar(select(Device).where(Device.peer_id == peer_id))
            if device is not None:
                require_active(session, self._locked_member(session, device.member_id), device)
            invite = usable_invite(session, invite_code, device, now) if invite_code else None
            if invite is not None:
                member = self._locked_member(session, invite.member_id)
                require_active(session, member)
                device = device or self._add_device(session, member, public_key, peer_id, invite.role)
                use_up(session, invite, device, now)
            if device is None:
                raise _not_invited()
            keep_receipt_key(session, device, receipt_key)
            return self._grant(session, device, take_role(session, device, role))

        return self._database.transact(admit)

    def join_by_login(self, public_key: bytes, identity: Identity, role: str = "", *, receipt_key: str = "") -> Grant:
        """Admit the device with key `public_key` for a user identified by a provider.

        Raises `NotAllowedError` or `RevokedError` if the user may not join. See `join`.
        """
        check_role(role)
        peer_id = peer_id_of(public_key)

        def admit(session: Session) -> Grant:
            account = self._admitted_account(session, identity)
            member = self._locked_member(session, account.member_id)
            device = session.scalar(select(Device).where(Device.peer_id == peer_id))
            require_active(session, member, device)
            if device is not None and device.member_id != member.id:
                raise RequestError(f"This device belongs to {device.member.name} already, not to {identity.label}.")
            device = device or self._add_device(session, member, public_key, peer_id, account.role)
            keep_receipt_key(session, device, receipt_key)
            record_login(session, device, account)
            session.flush()
            return self._grant(session, device, take_role(session, device, role or account.role))

        return self._database.transact(admit)

    def allow(self, entry: str, role: str = "trainer", name: str = "") -> str | None:
        """Add an entry to the allowlist; return the member's name, or None for an organisation.

        `name` is the account's new or existing member; "" names the member after the entry.
        """
        parsed = Entry.parse(entry)
        if parsed.is_organisation and name:
            raise ConfigError(f"{parsed} stands for many people: they cannot all be {name!r}.")
        called = None if parsed.is_organisation else member_name(name or str(parsed)[:MAX_NAME_CHARS])

        def add(session: Session) -> str | None:
            member = None if called is None else self._find_or_add_member(session, called)
            if member is not None:
                require_active(session, member)
            add_entry(session, parsed, role, member, self._clock())
            return called

        return self._database.transact(add)

    def disallow(self, entry: str) -> None:
        """Remove an allowlist entry; devices it admitted remain until their member is revoked."""
        parsed = Entry.parse(entry)
        self._database.transact(lambda session: remove_entry(session, parsed))

    def allowlist(self) -> list[AllowedRow]:
        """Return the entries of the allowlist."""
        with self._database() as session:
            return entries(session)

    def renew(self, public_key: bytes) -> Grant:
        """Issue a new token to a known device that has proved possession of `public_key`."""

        def prolong(session: Session) -> Grant:
            device = session.scalar(select(Device).where(Device.peer_id == peer_id_of(public_key)))
            if device is None:
                raise _not_invited()
            require_active(session, self._locked_member(session, device.member_id), device)
            return self._grant(session, device, cast(Role, device.role))

        return self._database.transact(prolong)

    def grant_keeper(self, public_key: bytes, receipt_key: str = "") -> Grant:
        """Issue a token to the run's own keeper, which has access to this database anyway."""
        peer_id = peer_id_of(public_key)

        def admit(session: Session) -> Grant:
            device = session.scalar(select(Device).where(Device.peer_id == peer_id))
            if device is None:
                member = self._find_or_add_member(session, KEEPER)
                device = self._add_device(session, member, public_key, peer_id, KEEPER_ROLE)
            keep_receipt_key(session, device, receipt_key)
            return self._grant(session, device, "keeper")

        return self._database.transact(admit)

    def revoke(self, name: str, reason: str = "") -> int:
        """Revoke a member and all devices permanently; return the number of newly revoked devices."""
        name = member_name(name)
        now = self._clock()

        def shut_member_out(session: Session) -> int:
            member = self._named_member(session, name)
            if member.revoked_at is None:
                member.revoked_at, member.revoked_reason = now, reason
            return sum(shut_out(session, device, reason, now) for device in member.devices)

        return self._database.transact(shut_member_out)

    def revoke_device(self, name: str, device_id: str, reason: str = "") -> str:
        """Permanently revoke one of a member's devices; the member remains and may add another device.

        `device_id` may be a prefix that is unique among the member's devices. Return the full id.
        """
        name = member_name(name)

        def shut_device_out(session: Session) -> str:
            device = find_device(session, self._named_member(session, name), device_id)
            shut_out(session, device, reason, self._clock())
            return device.id

        return self._database.transact(shut_device_out)

    def known_name(self, name: str) -> str:
        """Return a member's name as stored. Raises `ConfigError` for an unknown member."""
        name = member_name(name)
        with self._database() as session:
            return self._named_member(session, name).name

    def revocation_of(self, device_id: str) -> RevokedError | None:
        """Return the error for a revoked or quarantined device, or None if it is neither."""
        with self._database() as session:
            device = session.get(Device, device_id)
            return None if device is None else revocation_of(session, device.member, device)

    def revocations_jwt(self) -> str:
        """Return the signed list of all revoked or quarantined devices."""
        return self._revocations.jwt()

    def check(self, jwt: str) -> AccessToken:
        """Verify a token's signature and dates, and that its device is active; return the token."""
        authority, now = self._authority(), self._clock()
        authorities = Authorities.of(authority.public_bytes, handover_to(authority, self._run))
        token = authorities.read_token(jwt, self._run, now)
        require_usable(token, now)
        with self._database() as session:
            device = session.get(Device, token.device_id)
            if device is None or device.peer_id != token.peer_id:
                raise NotInvitedError("The token's device is not known here: join again.")
            require_active(session, device.member, device)
        return token

    def members(self) -> list[MemberRow]:
        """Return all members except the keeper, sorted by name."""
        now = self._clock()
        devices = select(func.count()).where(Device.member_id == Member.id).scalar_subquery()
        invites = (
            select(func.count())
            .where(Invite.member_id == Member.id, Invite.used_at.is_(None), Invite.expires_at > now)
            .scalar_subquery()
        )
        last_seen = (
            select(func.max(DeviceSession.last_seen_at))
            .join(DeviceSession.device)
            .where(Device.member_id == Member.id)
            .scalar_subquery()
        )
        query = select(Member, devices, invites, last_seen).where(Member.name != KEEPER).order_by(Member.name)
        with self._database() as session:
            accounts = accounts_by_member(session)
            return [
                MemberRow(
                    name=member.name,
                    devices=device_count,
                    open_invites=0 if member.revoked_at is not None else invite_count,
                    created_at=member.created_at,
                    last_seen_at=seen_at,
                    revoked_at=member.revoked_at,
                    revoked_reason=member.revoked_reason,
                    accounts=tuple(sorted(accounts.get(member.id, ()))),
                )
                for member, device_count, invite_count, seen_at in session.execute(query)
            ]

    def record_refusal(self, kind: Kind, error: ManyhandsError, device_id: str | None = None) -> None:
        """Record a refusal with its reason, for the operator."""
        with self._database.begin() as session:
            add_refusal(session, kind, error.code, str(error), device_id, self._clock())

    def _admitted_account(self, session: Session, identity: Identity) -> Account:
        """Return the account of an allowed identity; the first login creates the account and a member."""
        account = find_account(session, identity)
        if account is not None:
            require_active(session, session.get_one(Member, account.member_id))
        matched = matching_entries(session, identity, account)
        if account is None:
            named = next((row.member_id for row in matched if row.member_id is not None), None)
            member_id = named or self._add_member_for(session, identity).id
            account = Account(member_id=member_id, issuer=identity.issuer, subject=identity.subject)
        account.label, account.role = identity.label, matched[0].role
        session.add(account)
        session.flush()
        bind(session, matched, account)
        return account

    def _add_member_for(self, session: Session, identity: Identity) -> Member:
        """Add a member named after the account, with a suffix if another member has that name."""
        wanted = identity.label[:MAX_NAME_CHARS]
        taken = mixed_scripts(wanted) or skeleton(wanted) in set(map(skeleton, names_in_use(session)))
        mark = "#" + hashlib.sha256(f"{identity.issuer} {identity.subject}".encode()).hexdigest()[:8]
        return self._add_member(session, wanted[: MAX_NAME_CHARS - len(mark)] + mark if taken else wanted)

    def _find_or_add_member(self, session: Session, name: str) -> Member:
        member = session.scalar(select(Member).where(Member.name == name))
        if member is None:
            check_new_name(name, names_in_use(session))
            member = self._add_member(session, name)
        return member

    def _add_member(self, session: Session, name: str) -> Member:
        member = Member(name=name, created_at=self._clock(), revoked_reason="")
        session.add(member)
        session.flush()
        return member

    def _add_device(self, session: Session, member: Member, public_key: bytes, peer_id: str, role: str) -> Device:
        require_good_standing(session, member)
        one_at_a_time(session, Lock.DEVICE_NUMBERS)
        highest = session.scalar(select(func.max(Device.number)))
        device = Device(
            id=device_id_of(public_key),
            member=member,
            number=0 if highest is None else highest + 1,
            peer_id=peer_id,
            public_key=public_key,
            role=role,
            created_at=self._clock(),
        )
        session.add(device)
        session.flush()
        return device

    def _locked_member(self, session: Session, member_id: int) -> Member:
        """Return the member with its row locked, which serializes revocations and new devices."""
        return session.get_one(Member, member_id, with_for_update=True)

    def _named_member(self, session: Session, name: str) -> Member:
        """Find and lock a member by name. Raises `ConfigError` for an unknown name."""
        member = session.scalar(select(Member).where(Member.name == name).with_for_update())
        if member is None:
            raise ConfigError(f"No member is called {name!r}: `manyhands coordinator members` lists them.")
        return member

    def _grant(self, session: Session, device: Device, role: Role) -> Grant:
        now = self._clock()
        if role != KEEPER_ROLE:
            require_room(session, device.member, device, self._max_devices, now)
        expires_at = device.token_until = now + self._token_lifetime_s
        token = AccessToken(
            member=device.member.name,
            device_id=device.id,
            peer_id=device.peer_id,
            public_key=device.public_key.decode("ascii"),
            role=role,
            run=self._run,
            issued_at=now,
            expires_at=expires_at,
            receipt_key=device.receipt_key or "",
        )
        return Grant(
            issue_token(self._authority(), token), token.member, token.device_id, token.peer_id, device.number, role
        )


def device_id_of(public_key: bytes) -> str:
    """Return a device's id, derived from its public key."""
    return hashlib.sha256(public_key).hexdigest()[:32]


def member_name(name: str) -> str:
    """Normalize a name for storage (NFC, trimmed). Raises `ConfigError` if it is unusable."""
    name = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise ConfigError(f"The name {name!r:.80} must have 1 to {MAX_NAME_CHARS} printable characters.")
    if name == KEEPER:
        raise ConfigError(f"The name {KEEPER!r} belongs to the run's own keeper: choose another.")
    return name


def names_in_use(session: Session, *, but: int | None = None) -> Iterator[str]:
    """Yield the names and public names of all members except the member with the id `but`."""
    for row in session.execute(select(Member.id, Member.name, Member.display_name)):
        if row.id != but:
            yield row.name
            if row.display_name:
                yield row.display_name


def _not_invited() -> NotInvitedError:
    return NotInvitedError("This device is not known here: ask the run's operator for an invite code.")
