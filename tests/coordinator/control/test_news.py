"""News for sessions: what is worked out for all of them at once, and told in turn."""

from __future__ import annotations

import ipaddress
import time
from pathlib import Path

import pytest

from auth.tokens import AccessToken
from coordinator.control import news as news_module
from coordinator.control.news import (
    PRESENCE_EVERY_S,
    STANDING_EVERY_S,
    MemberStanding,
    SessionNews,
    presence_every_s,
    standings,
)
from coordinator.control.session import End, LiveSession
from coordinator.ledger.reading import Contribution
from coordinator.ledger.sessions import ONLINE_S
from peer.protocol.control_pb2 import CoordinatorMessage
from tests.support.control_plane import serving


def contribution(member: str, samples: int) -> Contribution:
    return Contribution(member, samples, 1, 1, None, 0.0, 0.0, 0.0, 0)


def test_equals_share_a_rank() -> None:
    """It is one more than how many have given more."""
    rows = [contribution(name, samples) for name, samples in (("Ada", 5), ("Bob", 9), ("Cyd", 5), ("Dan", 0))]
    assert standings(rows) == {
        "Bob": MemberStanding(9, 1, 4),
        "Ada": MemberStanding(5, 2, 4),
        "Cyd": MemberStanding(5, 2, 4),
        "Dan": MemberStanding(0, 4, 4),
    }


async def test_a_large_crowd_is_told_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it stands, and how often to speak: so many at each call; who has gone is passed over, who knows it too."""
    monkeypatch.setattr(news_module, "TOLD_AT_ONCE", 2)
    monkeypatch.setattr(news_module, "PRESENCES_PER_SECOND", 1.0)
    async with serving(tmp_path) as coordinator:
        live = {name: live_session(name) for name in ("Ada", "Bob", "Cyd", "Dan")}
        crowd, news = [*live.values()], SessionNews(coordinator.services, live)

        async def told() -> list[tuple[str, str]]:
            await news.refresh()
            return [
                (session.id, kind) for session in crowd for kind in kinds_of(session) if kind in {"standing", "pace"}
            ]

        assert await told() == [(name, kind) for name in ("Ada", "Bob") for kind in ("pace", "standing")]
        crowd[2].end()
        del live["Cyd"]
        assert await told() == [("Dan", "pace"), ("Dan", "standing")]
        coordinator.clock.ahead_s += 2 * STANDING_EVERY_S
        assert await told() == []


async def test_what_found_no_room_is_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pace and standing count as told once they are queued; those whose queues are full take nobody else's turn."""
    monkeypatch.setattr(news_module, "TOLD_AT_ONCE", 1)
    monkeypatch.setattr(news_module, "PRESENCES_PER_SECOND", 0.5)
    async with serving(tmp_path) as coordinator:
        full, free = live_session("Ada"), live_session("Bob")
        news = SessionNews(coordinator.services, {"Ada": full, "Bob": free})
        while full.push(CoordinatorMessage()):
            pass
        for _ in range(2):
            await news.refresh()
        assert set(kinds_of(full)) == {None}
        assert {"pace", "standing"} <= set(kinds_of(free))
        coordinator.clock.ahead_s += 2 * STANDING_EVERY_S
        for _ in range(2):
            await news.refresh()
        assert {"pace", "standing"} <= set(kinds_of(full))
        assert kinds_of(free) == []


def live_session(name: str) -> LiveSession:
    now = time.time()
    token = AccessToken(name, name, name, "", "trainer", "test", now, now + 3600.0, "a" * 64)
    return LiveSession(name, token, ipaddress.ip_address("192.0.2.1"))


def kinds_of(session: LiveSession) -> list[str | None]:
    """What is in its queue now, which is empty then."""
    queued = [session.outgoing.get_nowait() for _ in range(session.outgoing.qsize())]
    return ["end" if isinstance(message, End) else message.WhichOneof("body") for message in queued]


def test_a_large_crowd_says_seldom_that_it_is_here() -> None:
    """In whole seconds; who comes and goes at a boundary changes nothing, and nobody is silent until it seems gone."""
    assert presence_every_s(1500, PRESENCE_EVERY_S) == PRESENCE_EVERY_S
    assert presence_every_s(1501, PRESENCE_EVERY_S) == 4.0
    assert presence_every_s(1500, 4.0) == 4.0
    assert presence_every_s(2001, 4.0) == 5.0
    assert presence_every_s(1500, 5.0) == 3.0
    assert presence_every_s(100_000, PRESENCE_EVERY_S) == 10.0 < ONLINE_S
