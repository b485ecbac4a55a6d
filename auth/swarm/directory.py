"""The peers with valid tokens in the DHT, and streams that end when a token becomes invalid.

Every peer publishes its access token in the DHT, and DHT nodes reject records without a valid token.
A peer exchanges messages and tensors only with libp2p identities that have a valid, unrevoked token.
The transport authenticates these identities.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.swarm.authorizer import Clock, checked_token, tokens_in
from auth.tokens import AccessToken

Message = TypeVar("Message")


@dataclass(frozen=True)
class SwarmAccess:
    """The credentials and roles with which a peer's processes check other peers."""

    credentials: Credentials
    run: str
    donor_roles: frozenset[str]  # roles of the peers from which this peer downloads state
    clock: Clock = swarm_time


class PeerDirectory:
    """A cache of the peers with valid tokens in the DHT, refreshed when an unknown peer calls."""

    def __init__(
        self,
        read: Callable[[], Awaitable[object]],
        credentials: Credentials,
        clock: Clock = time.time,
        timer: Clock = time.monotonic,
    ) -> None:
        """`read` fetches the DHT's entries; `clock` determines expiration, and `timer` limits the rate of lookups."""
        self._read = read
        self._credentials = credentials
        self._clock, self._timer = clock, timer
        self._tokens: dict[str, str] = {}  # libp2p peer ID -> JWT
        self._checked: dict[str, tuple[AccessToken, float]] = {}  # JWT -> valid token, time of its next check
        self._began_at = float("-inf")
        self._newest: asyncio.Task[None] | None = None  # most recently started lookup
        self._next: asyncio.Task[None] | None = None  # lookup scheduled for the end of the refresh period

    CHECK_PERIOD_S = 0.5  # time for which a valid token is not checked again, even if it expires or is revoked
    REFRESH_PERIOD_S = 0.5  # minimum interval between lookups, regardless of the number of unknown callers

    def token_of(self, peer: str) -> AccessToken | None:
        """Return the valid token of a peer (by ID) from the cache, or None; do not start a lookup."""
        jwt = self._tokens.get(peer)
        if jwt is None:
            return None
        if (known := self._checked.get(jwt)) is not None and self._timer() < known[1]:
            return known[0]
        token = checked_token(self._credentials, jwt, self._clock())
        if token is not None:
            self._checked[jwt] = token, self._timer() + self.CHECK_PERIOD_S
        return token

    def name_of(self, peer: str) -> str:
        """Return the member and device of a peer (by ID), for the log."""
        token = self.token_of(peer)
        return "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"

    async def admits(self, peer: str, roles: Collection[str]) -> bool:
        """Return whether the peer has a valid token for one of the roles; look up unknown peers."""
        return bool(await self.admitted([peer], roles))

    async def admitted(self, peers: Collection[str], roles: Collection[str]) -> set[str]:
        """Return those peers with a valid token for one of the roles; make at most one lookup."""
        found = self._known(peers, roles)
        if len(found) < len(set(peers)):  # a known peer may have rejoined in another role
            await self.refresh()
            found = self._known(peers, roles)
        return found

    def _known(self, peers: Collection[str], roles: Collection[str]) -> set[str]:
        return {peer for peer in peers if (token := self.token_of(peer)) is not None and token.role in roles}

    async def with_role(self, roles: Collection[str]) -> list[str]:
        """Look up and return all peers with a valid token for one of the roles."""
        await self.refresh()
        return list(self._known(self._tokens, roles))

    async def refresh(self) -> None:
        """Reread the peers' tokens. Concurrent calls share the next lookup and its errors."""
        if self._next is None:
            self._next = asyncio.create_task(self._look_up(self._newest))
        await asyncio.shield(self._next)  # cancellation of one caller must not affect the others

    async def _look_up(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait({previous})
            previous = None  # otherwise a failed lookup's traceback would keep all earlier lookups alive
        await asyncio.sleep(max(0.0, self._began_at + self.REFRESH_PERIOD_S - self._timer()))
        self._newest, self._next = self._next, None
        self._began_at = self._timer()
        await self._read_records()

    async def _read_records(self) -> None:
        found = await self._read()
        now = self._clock()
        for peer_id, jwt in tokens_in(found):
            token = checked_token(self._credentials, jwt, now)
            if token is not None and token.peer_id == peer_id:
                self._tokens[peer_id] = jwt
        self._tokens = {peer: jwt for peer, jwt in self._tokens.items() if checked_token(self._credentials, jwt, now)}
        self._checked.clear()


async def while_admitted(
    directory: PeerDirectory, peer: str, roles: Collection[str], messages: AsyncIterator[Message]
) -> AsyncGenerator[Message, None]:
    """Yield messages while the peer is admitted, so that a revocation ends the peer's calls."""
    try:
        async for message in messages:
            if not await directory.admits(peer, roles):
                return
            yield message
    finally:
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()
