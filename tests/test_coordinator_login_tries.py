"""How often a password may be tried, wherever."""

from __future__ import annotations

from sqlalchemy import func, select

from coordinator.login_tries import LoginTries
from coordinator.store.engine import Sessions
from coordinator.store.replica_models import LoginTry
from tests.support.clocks import Clock


def test_replicas_count_together(sessions: Sessions) -> None:
    """What one has taken the other no longer gives; another account has its own; after a minute all is as before."""
    clock = Clock()
    first, second = (LoginTries(sessions, 2, clock) for _ in range(2))
    assert first.allows("grace")
    assert second.allows("grace")
    assert not first.allows("grace")
    assert not second.allows("grace")
    assert first.allows("ada")
    clock.now += 60.0
    assert first.allows("grace")
    with sessions() as session:
        assert session.scalar(select(func.count(LoginTry.id))) == 1
