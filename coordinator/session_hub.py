"""All open sessions of this service: who is connected, and what goes down to them.

One watcher looks at the store once a second, because revocations are made by other processes (the operator's command,
another replica): a new revocation list goes to everybody, and the revoked are told and sent away. The members'
standings are read at the same place, once for all sessions.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from auth.errors import ManyhandsError, QuarantinedError, RequestError, UnreachableError
from auth.tokens import AccessToken, verify_revocations
from coordinator.callers import Address
from coordinator.ledger import Contribution
from coordinator.relays import some_of
from coordinator.run_services import RunServices
from peer.protocol import control_pb2

logger = logging.getLogger(__name__)
MAX_SESSIONS = 2_000
QUEUE_MESSAGES = 256
STANDING_EVERY_S = 2.0
PUSH_TOKEN_AT = 0.5  # of its lifetime: well before the peer asks for a new one by itself


@dataclass(frozen=True)
class End:
    """The last thing in a session's queue."""

    error: ManyhandsError | None = None


@dataclass(frozen=True)
class Standing:
    """A member's place among all."""

    own_samples: int
    rank: int  # from 1; equals share one
    members: int


def standing_of(member: str, contributions: Sequence[Contribution]) -> Standing:
    """Where a member stands among all contributions."""
    own = sum(entry.samples for entry in contributions if entry.member == member)
    return Standing(own, 1 + sum(entry.samples > own for entry in contributions), len(contributions))


@dataclass(eq=False)
class LiveSession:
    """One welcomed session: what its writer has still to send."""

    id: str
    token: AccessToken
    caller: Address
    relay: str = ""  # where this device relays for others; "": nowhere
    standing: Standing | None = None  # as it was last told
    ended: bool = False
    outgoing: asyncio.Queue[control_pb2.CoordinatorMessage | End] = field(
        default_factory=lambda: asyncio.Queue(QUEUE_MESSAGES)
    )

    def push(self, message: control_pb2.CoordinatorMessage) -> None:
        """Queue a message; one that finds no room is lost, for its reader has stopped reading and will be cut off."""
        if not self.outgoing.full():
            self.outgoing.put_nowait(message)

    def end(self, error: ManyhandsError | None = None, last: control_pb2.CoordinatorMessage | None = None) -> None:
        """Let the writer send what is queued and `last`, then end the stream; the first end counts."""
        if self.ended:
            return
        self.ended = True
        while self.outgoing.qsize() > QUEUE_MESSAGES - 2:
            self.outgoing.get_nowait()
        if last is not None:
            self.outgoing.put_nowait(last)
        self.outgoing.put_nowait(End(error))


class SessionHub:
    """The registry of live sessions; one per device, the newest counts."""

    def __init__(self, services: RunServices) -> None:
        self._services = services
        self._live: dict[str, LiveSession] = {}  # by device
        self._revocations_jwt = ""
        self._revoked: frozenset[str] = frozenset()  # peer IDs
        self._standings_due = 0.0
        self._closing = False
        self._rng = random.Random()

    def add(self, session: LiveSession) -> None:
        """Register a welcomed session; an older one of the same device ends."""
        device_id = session.token.device_id
        if self._closing or (len(self._live) >= MAX_SESSIONS and device_id not in self._live):
            raise UnreachableError("The coordinator takes no more sessions now; it will be tried again.")
        older = self._live.pop(device_id, None)
        if older is not None:
            older.end(RequestError("The same device opened another session: is it running twice?"))
        self._live[device_id] = session

    def remove(self, session: LiveSession) -> None:
        """Forget an ended session."""
        if self._live.get(session.token.device_id) is session:
            del self._live[session.token.device_id]

    def relays_for(self, peer_id: str) -> tuple[str, ...]:
        """Some volunteers that relay for a joiner."""
        return some_of([session.relay for session in list(self._live.values())], peer_id, self._rng)

    def close(self) -> None:
        """End all sessions because the service stops; the peers will come back."""
        self._closing = True
        for session in self._live.values():
            session.end(UnreachableError("The coordinator is stopping."))

    async def refresh(self) -> None:
        """Push what has changed in the store since the last call: revocations, and tokens that grow old."""
        jwt = await asyncio.to_thread(self._services.membership.revocations_jwt)
        if jwt != self._revocations_jwt:
            self._announce(jwt)
        await self._send_revoked_away()
        now = self._services.clock()
        if self._live and now >= self._standings_due:
            self._standings_due = now + STANDING_EVERY_S
            self._push_standings(await asyncio.to_thread(self._services.ledger.contributions))
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

    async def _send_revoked_away(self) -> None:
        """Each time, not only when the list changes: a session may have been opened in the meantime."""
        for session in list(self._live.values()):
            if not session.ended and session.token.peer_id in self._revoked:
                error = await asyncio.to_thread(self._services.membership.revocation_of, session.token.device_id)
                if error is not None:  # else a quarantine that has just been lifted
                    in_quarantine = isinstance(error, QuarantinedError)
                    notice = control_pb2.RevokedNotice(reason=str(error), quarantined=in_quarantine)
                    session.end(error, last=control_pb2.CoordinatorMessage(revoked=notice))

    def _push_standings(self, contributions: Sequence[Contribution]) -> None:
        for session in self._live.values():
            standing = standing_of(session.token.member, contributions)
            if standing != session.standing:
                session.standing = standing
                session.push(control_pb2.CoordinatorMessage(standing=control_pb2.Standing(**asdict(standing))))

    async def _renew(self, session: LiveSession) -> None:
        membership = self._services.membership
        try:
            grant = await asyncio.to_thread(membership.renew, session.token.public_key.encode())
            session.token = await asyncio.to_thread(membership.check, grant.token_jwt)
        except ManyhandsError as error:
            session.end(error)
        else:
            session.push(control_pb2.CoordinatorMessage(token=grant.token_jwt))
