"""Web administrators: passwords (argon2id), revocable login sessions, and rate limits on attempts.

A session is identified by a random token in a cookie. The database stores only a hash of the token,
so a copy of the database does not give access. Every form must include the session's CSRF token.

Password attempts are counted in the database, so running more replicas does not allow more guesses.
Other limits protect a process's own resources (memory, threads, sockets) and apply per replica.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError
from auth.look_alikes import check_new_name
from coordinator.members.membership import member_name
from coordinator.store.engine import Database
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import Administrator, AdminSession
from coordinator.store.service_models import LoginTry

MINUTE_S = 60.0
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 256  # password lengths in characters
LIFETIME_S, IDLE_S = 12 * 3600.0, 30 * 60.0
_HASHER = PasswordHasher()
NOTED_EVERY_S = 30.0  # minimum interval between updates of a session's last use
SESSIONS_KEPT = 16  # maximum number of sessions per administrator; a new login ends the oldest


@dataclass(frozen=True)
class Login:
    """An administrator's login session: the name, and the CSRF token required in forms."""

    name: str
    csrf_token: str


class Administrators:
    """The administrators' passwords and login sessions in the database; thread-safe."""

    def __init__(
        self, database: Database, clock: Callable[[], float] = time.time, hasher: PasswordHasher = _HASHER
    ) -> None:
        self._database, self._clock = database, clock
        self._hasher = hasher
        self._nobodys_hash = _nobodys_hash(hasher)

    def set_password(self, name: str, password: str) -> None:
        """Add an administrator, or change an existing one's password and end their sessions."""
        name = member_name(name)
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise ConfigError(f"A password must have {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.")
        password_hash = self._hasher.hash(password)

        def change(session: Session) -> None:
            known = session.scalar(select(Administrator).where(Administrator.name == name))
            if known is None:
                check_new_name(name, session.scalars(select(Administrator.name)))
                session.add(Administrator(name=name, password_hash=password_hash, created_at=self._clock()))
            else:
                known.password_hash = password_hash
                session.execute(delete(AdminSession).where(AdminSession.administrator_id == known.id))

        self._database.transact(change)

    def remove(self, name: str) -> None:
        """Remove an administrator and end their sessions. Raises `ConfigError` if unknown."""

        def take(session: Session) -> None:
            known = session.scalar(select(Administrator).where(Administrator.name == member_name(name)))
            if known is None:
                raise ConfigError(f"No administrator is called {name!r:.80}.")
            session.execute(delete(AdminSession).where(AdminSession.administrator_id == known.id))
            session.delete(known)

        self._database.transact(take)

    def names(self) -> list[str]:
        """Return the administrators' names in alphabetical order."""
        with self._database() as session:
            return list(session.scalars(select(Administrator.name).order_by(Administrator.name)))

    def log_in(self, name: str, password: str) -> str | None:
        """Return a new session token, or None; unknown names take as long as wrong passwords."""
        with self._database() as session:
            named = select(Administrator).where(Administrator.name == name)
            known = session.scalar(named) if name.isprintable() else None  # PostgreSQL rejects NUL in text
        right = self._verify(known.password_hash if known is not None else self._nobodys_hash, password)
        if known is None or not right:
            return None
        token = secrets.token_urlsafe(32)
        self._database.transact(lambda session: self._open(session, known.id, known.password_hash, token))
        return token

    def login_of(self, token: str) -> Login | None:
        """Return the session for a token, or None if unknown, expired or idle for too long."""
        now = self._clock()
        found = select(AdminSession).where(AdminSession.token_sha256 == _hash(token))
        with self._database() as session:
            login = session.scalar(found)
            if login is None or now >= login.expires_at or now >= login.last_seen_at + IDLE_S:
                return None
            result, seen_at = Login(login.administrator.name, login.csrf_token), login.last_seen_at
        if now >= seen_at + NOTED_EVERY_S:
            with self._database.begin() as session:
                login = session.scalar(found)
                if login is not None:
                    login.last_seen_at = now
        return result

    def log_out(self, token: str) -> None:
        """End a login session."""
        with self._database.begin() as session:
            session.execute(delete(AdminSession).where(AdminSession.token_sha256 == _hash(token)))

    def _verify(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password[: LONGEST_PASSWORD + 1])
        except (VerificationError, InvalidHashError):
            return False

    def _open(self, session: Session, administrator_id: int, password_hash: str, token: str) -> None:
        known = session.get(Administrator, administrator_id, with_for_update=True)  # locks the administrator's row
        if known is None or known.password_hash != password_hash:
            raise ConfigError("The password has just been changed: log in again.")
        now = self._clock()
        session.execute(delete(AdminSession).where(AdminSession.expires_at <= now))
        mine = AdminSession.administrator_id == administrator_id
        kept = select(AdminSession.id).where(mine).order_by(AdminSession.id.desc()).limit(SESSIONS_KEPT - 1)
        session.execute(delete(AdminSession).where(mine, AdminSession.id.not_in(kept)))
        session.add(
            AdminSession(
                administrator_id=administrator_id,
                token_sha256=_hash(token),
                csrf_token=secrets.token_urlsafe(32),
                last_seen_at=now,
                expires_at=now + LIFETIME_S,
            )
        )


@dataclass(frozen=True)
class LoginTries:
    """A rate limit on login attempts per account, including unknown accounts; thread-safe."""

    database: Database
    per_minute: int
    clock: Callable[[], float]

    def allows(self, account: str) -> bool:
        """Return whether an attempt is within the limit; if so, count the attempt."""
        digest = hashlib.sha256(b"manyhands-account-v1:" + account.encode()).digest()
        return self.database.transact(lambda session: self._count(session, digest))

    def _count(self, session: Session, digest: bytes) -> bool:
        now = self.clock()
        one_at_a_time(session, Lock.LOGIN_TRIES, int.from_bytes(digest[:4], "big"))
        session.execute(delete(LoginTry).where(LoginTry.at <= now - MINUTE_S))
        tried = session.scalar(select(func.count()).where(LoginTry.account_sha256 == digest)) or 0
        if tried >= self.per_minute:
            return False
        session.add(LoginTry(account_sha256=digest, at=now))
        return True


def _hash(token: str) -> bytes:
    """Hash a token. A plain hash is sufficient for 256 random bits."""
    return hashlib.sha256(b"manyhands-login-v1:" + token.encode()).digest()


@cache
def _nobodys_hash(hasher: PasswordHasher) -> str:
    """Return a dummy hash for verifying passwords of unknown names; computed once, in advance."""
    return hasher.hash(secrets.token_hex())
