"""Updates for open sessions about changes in the database since each session's last message.

The database is polled once a second, because other processes (the operator's command, another
replica) write revocations. A new revocation list is sent to all sessions; revoked devices are
notified and disconnected. Members' standings are also read here, once for all sessions.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from weakref import WeakKeyDictionary

from auth.errors import ManyhandsError, QuarantinedError
from auth.tokens import verify_revocations
from coordinator.context.services import RunServices
from coordinator.control.relays import ended_elsewhere, forget_relays_of_the_gone
from coordinator.control.session import LiveSession, addresses_message, announcement_message, opened_again
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.reading import Contribution
from coordinator.ledger.speed import time_left_s
from coordinator.ledger.steering import announcements, read_helm
from peer.protocol import control_pb2

STANDING_EVERY_S = 2.0
SPEED_CHANGE = 0.05  # relative change of the run's speed that triggers an update
TOLD_AT_ONCE = 250  # maximum number of sessions that receive a non-urgent message per `refresh`
PRESENCE_EVERY_S = 3.0
MOST_PRESENCE_S = 10.0  # maximum interval, well below the time after which a silent session counts as offline
PRESENCES_PER_SECOND = 500.0
TIDYING_EVERY_S = 60.0
PUSH_TOKEN_AT = 0.5  # fraction of a lifetime after which a token is renewed, well before the peer asks


@dataclass(frozen=True)
class MemberStanding:
    """A member's rank among all members, with the speed of the run."""

    own_samples: int
    rank: int  # rank, starting at 1; members with equal samples share a rank
    members: int
    samples_per_second: float = field(default=0.0, compare=False)  # speed of the whole run, or 0 if unknown
    time_left_s: float = field(default=0.0, compare=False)

    def is_news_to(self, told: MemberStanding | None) -> bool:
        """Return whether this standing differs notably from `told`, the last standing sent."""
        if told is None or self != told:
            return True
        change = abs(self.samples_per_second - told.samples_per_second)
        return change > SPEED_CHANGE * max(self.samples_per_second, told.samples_per_second)


def standings(contributions: Sequence[Contribution]) -> dict[str, MemberStanding]:
    """Return the standing of each member, ranked by samples."""
    most_first = sorted(contributions, key=lambda entry: -entry.samples)
    ranked: dict[str, MemberStanding] = {}
    rank, samples = 1, -1
    for place, entry in enumerate(most_first, start=1):
        if entry.samples != samples:
            rank, samples = place, entry.samples
        ranked[entry.member] = MemberStanding(entry.samples, rank, len(contributions))
    return ranked


def presence_every_s(sessions: int, told_s: float) -> float:
    """Return the interval between presence reports, in whole seconds, for this many sessions.

    `told_s` is the last interval sent; decreases of 1 s or less are ignored to limit messages.
    """
    wanted = min(max(PRESENCE_EVERY_S, math.ceil(sessions / PRESENCES_PER_SECOND)), MOST_PRESENCE_S)
    return told_s if told_s - 1 <= wanted <= told_s else wanted


@dataclass
class _Told:
    """The latest standing and presence interval sent to a session."""

    standing: MemberStanding | None = None
    presence_every_s: float = PRESENCE_EVERY_S


class SessionNews:
    """A sender of updates to the sessions in `live` (by device ID); used from one event loop."""

    def __init__(self, services: RunServices, live: Mapping[str, LiveSession]) -> None:
        self._services, self._live = services, live
        self._told: WeakKeyDictionary[LiveSession, _Told] = WeakKeyDictionary()
        self._revocations_jwt = ""
        self._revoked: frozenset[str] = frozenset()  # peer IDs
        self._standings_due = self._tidying_due = 0.0
        self._untold: deque[tuple[LiveSession, MemberStanding]] = deque()  # changed standings to be sent
        self._announced = max((news.id for news in announcements(services.database)), default=0)
        self._addresses: tuple[str, ...] = ()  # multiaddresses of the keeper
        self._presence_every_s = PRESENCE_EVERY_S

    async def refresh(self) -> None:
        """Notify sessions of database changes since the last call; renew tokens before expiry."""
        jwt = await asyncio.to_thread(self._services.membership.revocations_jwt)
        if jwt != self._revocations_jwt:
            self._announce(jwt)
        await self._send_revoked_away()
        await self._end_what_is_over()
        await self._announce_news()
        await self._tell_addresses()
        self._pace_presences()
        now = self._services.clock()
        if now >= self._tidying_due:
            self._tidying_due = now + TIDYING_EVERY_S
            await asyncio.to_thread(forget_relays_of_the_gone, self._services.database, now)
        if self._live and not self._untold and now >= self._standings_due:
            self._standings_due = now + STANDING_EVERY_S
            contributions = await asyncio.to_thread(self._services.ledger.recent_contributions)
            self._untold.extend(self._moved(contributions, *await asyncio.to_thread(self._pace_of_run)))
        self._push_standings()
        for session in list(self._live.values()):
            token = session.token
            if not session.ended and now >= token.issued_at + PUSH_TOKEN_AT * (token.expires_at - token.issued_at):
                await self._renew(session)

    def _announce(self, jwt: str) -> None:
        services = self._services
        self._revoked = verify_revocations(jwt, services.authority_public, services.config.run.name).peer_ids
        self._revocations_jwt = jwt
        for session in self._live.values():
            session.push(control_pb2.CoordinatorMessage(revocations=jwt))

    async def _announce_news(self) -> None:
        for news in await asyncio.to_thread(announcements, self._services.database, self._announced):
            self._announced = news.id
            for session in self._live.values():
                session.push(announcement_message(news.text))

    async def _tell_addresses(self) -> None:
        """Send the keeper's addresses to all sessions if they have changed."""
        status = await asyncio.to_thread(read_swarm_status, self._services.database)
        if status is not None and status.addresses != self._addresses:
            self._addresses = status.addresses
            for session in self._live.values():
                session.push(addresses_message(status.addresses))

    def _pace_presences(self) -> None:
        """Adapt the presence interval to the number of sessions, to avoid delaying step reports.

        Sessions receive a new interval in batches; otherwise all would report simultaneously.
        """
        self._presence_every_s = presence_every_s(len(self._live), self._presence_every_s)
        pace = control_pb2.CoordinatorMessage(pace=control_pb2.PresencePace(every_s=self._presence_every_s))
        untold = (
            session
            for session in self._live.values()
            if self._told_to(session).presence_every_s != self._presence_every_s
        )
        for session in islice((session for session in untold if session.push(pace)), TOLD_AT_ONCE):
            self._told_to(session).presence_every_s = self._presence_every_s

    async def _send_revoked_away(self) -> None:
        """End revoked devices' sessions. Check all sessions, as some may be newer than the list."""
        for session in list(self._live.values()):
            if not session.ended and session.token.peer_id in self._revoked:
                error = await asyncio.to_thread(self._services.membership.revocation_of, session.token.device_id)
                if error is not None:  # None if the quarantine has just been lifted
                    in_quarantine = isinstance(error, QuarantinedError)
                    notice = control_pb2.RevokedNotice(reason=str(error), quarantined=in_quarantine)
                    session.end(error, last=control_pb2.CoordinatorMessage(revoked=notice))

    async def _end_what_is_over(self) -> None:
        """End the sessions of devices that have reconnected to another replica."""
        by_id = {session.id: session for session in self._live.values() if not session.ended}
        for session_id in await asyncio.to_thread(ended_elsewhere, self._services.database, list(by_id)):
            by_id[session_id].end(opened_again())

    def _pace_of_run(self) -> tuple[float, float]:
        """Return the run's samples per second and remaining seconds; 0 for unknown values."""
        services = self._services
        swarm = read_swarm_status(services.database)
        left_s = time_left_s(services.config, read_helm(services.database), swarm)
        return (0.0 if swarm is None else swarm.samples_per_second), left_s or 0.0

    def _moved(
        self, contributions: Sequence[Contribution], speed: float, left_s: float
    ) -> Iterator[tuple[LiveSession, MemberStanding]]:
        ranked = standings(contributions)
        nothing_yet = MemberStanding(0, 1 + sum(entry.samples > 0 for entry in contributions), len(contributions))
        for session in self._live.values():
            standing = ranked.get(session.token.member, nothing_yet)
            standing = replace(standing, samples_per_second=speed, time_left_s=left_s)
            if standing.is_news_to(self._told_to(session).standing):
                yield session, standing

    def _push_standings(self) -> None:
        for _ in range(min(TOLD_AT_ONCE, len(self._untold))):
            session, standing = self._untold.popleft()
            message = control_pb2.CoordinatorMessage(standing=control_pb2.Standing(**asdict(standing)))
            if not session.ended and session.push(message):
                self._told_to(session).standing = standing

    def _told_to(self, session: LiveSession) -> _Told:
        return self._told.setdefault(session, _Told())

    async def _renew(self, session: LiveSession) -> None:
        membership = self._services.membership
        try:
            grant = await asyncio.to_thread(membership.renew, session.token.public_key.encode())
            session.token = await asyncio.to_thread(membership.check, grant.token_jwt)
        except ManyhandsError as error:
            session.end(error)
        else:
            session.push(control_pb2.CoordinatorMessage(token=grant.token_jwt))
