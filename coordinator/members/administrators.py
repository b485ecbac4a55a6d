"""Administrators over the web: passwords (argon2id), revocable logins, and a limit on attempts.

A login is a random token in the browser's cookie. The database holds only its hash, so a copy of
the database gives no login. Every form must also carry the login's CSRF token.

Password attempts are counted in the database, for all replicas of the service together: more
replicas do not allow more guesses. The other limits on callers protect one process (memory,
threads, sockets), so each replica has its own.
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
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 256  # characters
LIFETIME_S, IDLE_S = 12 * 3600.0, 30 * 60.0
_HASHER = PasswordHasher()
NOTED_EVERY_S = 30.0  # between two updates of a login's last use
SESSIONS_KEPT = 16  # of one administrator; the oldest ends


@dataclass(frozen=True)
class Login:
    """An administrator's login: the name, and the token that every form must carry."""

    name: str
    csrf_token: str


class Administrators:
    """Passwords and logins, over the database; safe to call from threads."""

    def __init__(
        self, database: Database, clock: Callable[[], float] = time.time, hasher: PasswordHasher = _HASHER
    ) -> None:
        self._database, self._clock = database, clock
        self._hasher = hasher
        self._nobodys_hash = _nobodys_hash(hasher)

    def set_password(self, name: str, password: str) -> None:
        """Add an administrator, or change a password, which ends the logins by the old one."""
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
        """Remove an administrator and end the logins; raises `ConfigError` for unknown names."""

        def take(session: Session) -> None:
            known = session.scalar(select(Administrator).where(Administrator.name == member_name(name)))
            if known is None:
                raise ConfigError(f"No administrator is called {name!r:.80}.")
            session.execute(delete(AdminSession).where(AdminSession.administrator_id == known.id))
            session.delete(known)

        self._database.transact(take)

    def names(self) -> list[str]:
        """List the administrators' names."""
        with self._database() as session:
            return list(session.scalars(select(Administrator.name).order_by(Administrator.name)))

    def log_in(self, name: str, password: str) -> str | None:
        """Return a new login's token; None, after equal work, if name or password is wrong."""
        with self._database() as session:
            named = select(Administrator).where(Administrator.name == name)
            known = session.scalar(named) if name.isprintable() else None  # PostgreSQL rejects NUL
        right = self._verify(known.password_hash if known is not None else self._nobodys_hash, password)
        if known is None or not right:
            return None
        token = secrets.token_urlsafe(32)
        self._database.transact(lambda session: self._open(session, known.id, known.password_hash, token))
        return token

    def login_of(self, token: str) -> Login | None:
        """Return the login of a token; None if it is unknown, expired or idle for too long."""
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
        """End a login."""
        with self._database.begin() as session:
            session.execute(delete(AdminSession).where(AdminSession.token_sha256 == _hash(token)))

    def _verify(self, password_hash: str, password: str) -> bool:
        try:
            return self._hasher.verify(password_hash, password[: LONGEST_PASSWORD + 1])
        except (VerificationError, InvalidHashError):
            return False

    def _open(self, session: Session, administrator_id: int, password_hash: str, token: str) -> None:
        known = session.get(Administrator, administrator_id, with_for_update=True)  # against races
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
    """Counts the login attempts at each account, known or not; safe to call from threads."""

    database: Database
    per_minute: int
    clock: Callable[[], float]

    def allows(self, account: str) -> bool:
        """Return whether an attempt is within the limit; only such an attempt is counted."""
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
    """Hash a token; a plain hash is enough, as the token has 256 random bits."""
    return hashlib.sha256(b"manyhands-login-v1:" + token.encode()).digest()


@cache
def _nobodys_hash(hasher: PasswordHasher) -> str:
    """Return the hash to compare a password with for an unknown name; made once, in advance."""
    return hasher.hash(secrets.token_hex())
