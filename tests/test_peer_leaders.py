"""Whom an averager asks to lead, and whom not again; an observer that tries is in tests/security/test_roles.py."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID

from peer.leaders import AVOIDED_S, Leaders

ALICE, BOB, STRANGER = (PeerID(name) for name in (b"alice", b"bob", b"stranger"))
MEMBERS = {ALICE, BOB}


class Directory:
    """Knows the members without a DHT."""

    async def admitted(self, peers: Collection[PeerID], roles: Collection[str]) -> set[PeerID]:
        """Who of them is a member."""
        assert "observer" not in roles
        return set(peers) & MEMBERS

    def token_of(self, peer: PeerID) -> Any:
        """What a member's token says."""
        return SimpleNamespace(member="alice", device_id="1", role="trainer") if peer in MEMBERS else None


class Scene:
    """A search in which everybody declares itself, and leads a group of these peers."""

    def __init__(self, group: Collection[PeerID] | None) -> None:
        self.now, self.asked, self._group = 0.0, list[PeerID](), group
        self.matchmaking: Any = SimpleNamespace(
            group_key_manager=SimpleNamespace(get_averagers=self._declared), _request_join_group=self._request
        )
        Leaders(Directory(), lambda: self.now).choose_for(self.matchmaking)  # type: ignore[arg-type]

    async def _declared(self, _key: str, only_active: bool) -> list[tuple[PeerID, float]]:
        assert only_active
        return [(STRANGER, 1.0), (ALICE, 2.0), (BOB, 3.0)]

    async def _request(self, leader: PeerID) -> GroupInfo | None:
        self.asked.append(leader)
        if self._group is None:
            raise AssertionError("Leader sent us group_peer_ids that does not contain us!")
        return GroupInfo(b"group", tuple(self._group), (b"",) * len(self._group))

    async def leaders(self) -> list[PeerID]:
        """Who may be asked."""
        return [peer for peer, _ in await self.matchmaking.group_key_manager.get_averagers("key", only_active=True)]


async def test_strangers_are_not_asked() -> None:
    """Neither those who declare themselves nor those to whom another leader points."""
    scene = Scene([ALICE, BOB])
    assert await scene.leaders() == [ALICE, BOB]
    assert await scene.matchmaking._request_join_group(STRANGER) is None
    assert await scene.matchmaking._request_join_group(ALICE) is not None
    assert scene.asked == [ALICE]
    assert await scene.leaders() == [ALICE, BOB]


async def test_who_leads_strangers_is_avoided_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The log names it; the others can still lead, and it again later."""
    scene = Scene([ALICE, BOB, STRANGER])
    await scene.matchmaking._request_join_group(ALICE)
    assert "suspicious: alice (device 1, trainer)" in caplog.text
    assert await scene.leaders() == [BOB]
    scene.now = AVOIDED_S
    assert await scene.leaders() == [ALICE, BOB]


async def test_who_leads_a_group_without_us_is_avoided() -> None:
    """The search goes on as hivemind has it, without this leader."""
    scene = Scene(None)
    with pytest.raises(AssertionError):
        await scene.matchmaking._request_join_group(ALICE)
    assert await scene.leaders() == [BOB]
