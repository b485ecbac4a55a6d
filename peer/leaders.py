"""Whom an averager follows into a group: members who may average, and none whose groups are no good.

hivemind asks whoever declares itself to be a leader, and in its DHT anybody can declare anybody. A leader says who is
in its group. One without the right token, or one that brings strangers along, could so hold up every round: the others
give such a group up (`auth.swarm_auth`) and would ask the same leader again. Used by `peer.averaging`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import PeerID

from auth.swarm_auth import TRAINING_ROLES, PeerDirectory

logger = logging.getLogger(__name__)
AVOIDED_S = 60.0  # longer than a few rounds; a leader whose follower was revoked just then loses little
MOST_AVOIDED = 1000


class Leaders:
    """One averager's choice among those who declare themselves; asked in its own process only."""

    def __init__(self, directory: PeerDirectory, clock: Callable[[], float]) -> None:
        self._directory, self._clock = directory, clock
        self._avoided: dict[PeerID, float] = {}  # until when

    def choose_for(self, matchmaking: Matchmaking) -> None:
        """From now on this search asks nobody else; call it once."""
        keys, request = matchmaking.group_key_manager, matchmaking._request_join_group
        declared = keys.get_averagers

        async def trusted(*args: Any, **kwargs: Any) -> list[tuple[PeerID, float]]:
            found = await declared(*args, **kwargs)
            may_lead = await self.among([peer for peer, _ in found])
            return [(peer, expiration) for peer, expiration in found if peer in may_lead]

        async def request_trusted(leader: PeerID) -> GroupInfo | None:
            if leader not in await self.among([leader]):  # another leader may have sent us there
                return None
            try:
                group = await request(leader)
            except AssertionError:  # hivemind's, of a group without us
                self._avoid(leader, "a group without this peer")
                raise
            if group is not None:
                await self._look_at(leader, group)
            return group

        keys.get_averagers, matchmaking._request_join_group = trusted, request_trusted

    async def among(self, peers: Collection[PeerID]) -> set[PeerID]:
        """Which of these peers may lead a group that this averager is in."""
        now = self._clock()
        admitted = await self._directory.admitted(peers, TRAINING_ROLES)
        return {peer for peer in admitted if self._avoided.get(peer, now) <= now}

    async def _look_at(self, leader: PeerID, group: GroupInfo) -> None:
        strangers = set(group.peer_ids) - await self._directory.admitted(group.peer_ids, TRAINING_ROLES)
        if strangers:
            self._avoid(leader, f"a group with {len(strangers)} peers that hold no valid token")

    def _avoid(self, leader: PeerID, led: str) -> None:
        now = self._clock()
        self._avoided = {peer: until for peer, until in self._avoided.items() if until > now}
        if len(self._avoided) < MOST_AVOIDED:
            self._avoided[leader] = now + AVOIDED_S
        token = self._directory.token_of(leader)
        who = "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"
        logger.warning("suspicious: %s, peer %s, led %s: not followed for %g s", who, leader, led, AVOIDED_S)
