"""How often an administrator's password may be tried, at all replicas of the service together.

The other limits on callers protect the process that counts them (its memory, its threads, its sockets), so each replica
has its own. This one protects a password: whoever guesses must not have as many tries as there are replicas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from coordinator.store.engine import Sessions
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.replica_models import LoginTry

MINUTE_S = 60.0


@dataclass(frozen=True)
class LoginTries:
    """Counts the tries of each account, known or not; safe to call from threads."""

    sessions: Sessions
    per_minute: int
    clock: Callable[[], float]

    def allows(self, account: str) -> bool:
        """Count a try, and say whether it is within the limit; one that is not counts for nothing."""
        digest = hashlib.sha256(b"manyhands-account-v1:" + account.encode()).digest()
        return self.sessions.transact(lambda session: self._count(session, digest))

    def _count(self, session: Session, digest: bytes) -> bool:
        now = self.clock()
        one_at_a_time(session, Lock.LOGIN_TRIES, int.from_bytes(digest[:4], "big"))
        session.execute(delete(LoginTry).where(LoginTry.at <= now - MINUTE_S))
        tried = session.scalar(select(func.count()).where(LoginTry.account_sha256 == digest)) or 0
        if tried >= self.per_minute:
            return False
        session.add(LoginTry(account_sha256=digest, at=now))
        return True
