"""Device sessions: admission, a reader of the peer's messages, and a writer with a queue.

A device has one session at a time: a new session ends the previous one. The reader never writes.
All messages to the peer go through the session's queue, because a gRPC stream allows only one write
at a time. `coordinator.control.news` adds messages about changes in the database.

Devices report their presence every few seconds, and only the latest presence matters. Each second,
`PresenceBook` writes all presences in one transaction, so sessions do not wait for the database.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
from sqlalchemy.exc import SQLAlchemyError

from auth.errors import ManyhandsError, RequestError, TokenError, UnreachableError
from auth.keys import challenge_bytes, verify_signature
from auth.tokens import AccessToken
from coordinator.context.services import RunServices
from coordinator.control.door import Door
from coordinator.control.relays import offer_relay, relay_of
from coordinator.ledger.judgement import Delivery, ReportVerdict
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.sessions import APART, PresenceClaim, checked_claim, close_session, open_session, touch_sessions
from coordinator.ledger.steering import announcements
from coordinator.members.quarantine import SuspicionReport, hear
from coordinator.run.logs import about_session
from coordinator.store.engine import Database
from coordinator.throttling.rate_limits import Address, Pace
from coordinator.throttling.shared_work import Batcher
from peer.protocol import MAX_HARDWARE_CHARS, MAX_VERSION_CHARS, NONCE_BYTES, control_pb2
from peer.reporting.wire import lost_from_wire, report_from_wire
from peer.runtime.version import software_version

logger = logging.getLogger(__name__)

QUEUE_MESSAGES = 256
WRITE_EVERY_S = 1.0
HANDSHAKE_TIMEOUT_S = 15.0
NEWS_S, NEWS = 86_400.0, 3  # maximum age and number of announcements sent to a new session
WRITE_TIMEOUT_S = 30.0  # timeout for disconnecting a peer that does not read
MESSAGES_PER_SECOND, MESSAGES_AT_ONCE = 100.0, 300.0  # limits on a peer's messages, including its backlog of reports
INTERNAL_FAILURE = "The coordinator failed to handle a message; its log says why."


@dataclass(frozen=True)
class End:
    """The last item in a session's queue, with the error that ended the session, if any."""

    error: ManyhandsError | None = None


@dataclass(eq=False)
class LiveSession:
    """An open session, with the queue of messages to send."""

    id: str
    token: AccessToken
    caller: Address
    relay: str = ""  # address at which the device relays for other peers, or ""
    ended: bool = False
    outgoing: asyncio.Queue[control_pb2.CoordinatorMessage | End] = field(
        default_factory=lambda: asyncio.Queue(QUEUE_MESSAGES)
    )

    def push(self, message: control_pb2.CoordinatorMessage) -> bool:
        """Queue a message, or drop it and return False if the peer has stopped reading."""
        has_room = not self.outgoing.full()
        if has_room:
            self.outgoing.put_nowait(message)
        return has_room

    def end(self, error: ManyhandsError | None = None, last: control_pb2.CoordinatorMessage | None = None) -> None:
        """End the stream after the queued messages and `last`; repeated calls have no effect."""
        if self.ended:
            return
        self.ended = True
        while self.outgoing.qsize() > QUEUE_MESSAGES - 2:
            self.outgoing.get_nowait()
        if last is not None:
            self.outgoing.put_nowait(last)
        self.outgoing.put_nowait(End(error))


class SessionServer:
    """A server of sessions over gRPC streams; a device's new session replaces the old one."""

    def __init__(self, services: RunServices, door: Door) -> None:
        self._services, self._door = services, door
        self.live: dict[str, LiveSession] = {}  # device ID -> session
        self._closing = False
        self._reports: Batcher[Delivery, ReportVerdict] = Batcher(services.ledger.record_all)
        self._presences = PresenceBook(services.database)

    def end_all(self) -> None:
        """End all sessions because the service is stopping; peers will reconnect."""
        self._closing = True
        for session in self.live.values():
            session.end(UnreachableError("The coordinator is stopping."))

    async def close(self) -> None:
        """Write all pending reports and presences; call this after the streams have ended."""
        await self._reports.close()
        await self._presences.close()

    async def serve(self, context: Any) -> None:
        """Serve one session from challenge to end. Raises the error that rejects or ends the session."""
        try:
            token, hello = await asyncio.wait_for(self._shake_hands(context), HANDSHAKE_TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise RequestError(f"A session must be opened within {HANDSHAKE_TIMEOUT_S:.0f} s.") from error
        services = self._services
        session_id = await asyncio.to_thread(
            open_session, services.database, token.device_id, hello.hardware, hello.software_version, services.clock()
        )
        session = LiveSession(session_id, token, self._door.caller(context))
        try:
            await self._queue_welcome(session)  # the welcome must precede all updates
            self._add(session)
            with services.telemetry.sessions_open.track_inprogress(), about_session(session_id):
                await _Conversation(services, session, context, self._reports, self._presences).run()
        finally:
            self._remove(session)
            await asyncio.to_thread(close_session, services.database, session_id, services.clock())

    async def _queue_welcome(self, session: LiveSession) -> None:
        services, token = self._services, session.token
        welcome = control_pb2.Welcome(
            session_id=session.id,
            member=token.member,
            software_version=software_version(),
            hears_suspicions=True,
            hears_losses=True,
            software_address=services.software_address,
            last_seq=await asyncio.to_thread(services.ledger.last_seq, token.device_id),
        )
        session.push(control_pb2.CoordinatorMessage(welcome=welcome))

    def _add(self, session: LiveSession) -> None:
        """Register a session, and end an older session of the same device."""
        device_id = session.token.device_id
        if self._closing or (len(self.live) >= self._door.limits.sessions and device_id not in self.live):
            raise UnreachableError("The coordinator takes no more sessions now; it will be tried again.")
        older = self.live.pop(device_id, None)
        if older is not None:
            older.end(opened_again())
        self.live[device_id] = session

    def _remove(self, session: LiveSession) -> None:
        if self.live.get(session.token.device_id) is session:
            del self.live[session.token.device_id]

    async def _shake_hands(self, context: Any) -> tuple[AccessToken, control_pb2.Hello]:
        """Challenge the peer; return the peer's verified token and hello message."""
        nonce = secrets.token_bytes(NONCE_BYTES)  # valid only in this stream, so there is no need to store it
        challenge = control_pb2.SessionChallenge(nonce=nonce)
        await context.write(control_pb2.CoordinatorMessage(challenge=challenge))
        message = await context.read()
        if message is grpc.aio.EOF or message.WhichOneof("body") != "hello":
            raise RequestError("A session begins with a hello.")
        hello = message.hello
        if len(hello.hardware) > MAX_HARDWARE_CHARS or len(hello.software_version) > MAX_VERSION_CHARS:
            raise RequestError("The hello's `hardware` or `software_version` is too long.")
        return await asyncio.to_thread(self._check_hello, nonce, hello), hello

    def _check_hello(self, nonce: bytes, hello: control_pb2.Hello) -> AccessToken:
        token = self._services.membership.check(hello.token)
        public_key = token.public_key.encode()
        challenge = challenge_bytes("session", self._services.config.run.name, nonce, public_key)
        if not verify_signature(public_key, challenge, hello.signature):
            raise TokenError("The hello was not signed with the key that its token names.")
        return token


class _Conversation:
    """The exchange of messages in an open session."""

    def __init__(
        self,
        services: RunServices,
        session: LiveSession,
        context: Any,
        reports: Batcher[Delivery, ReportVerdict],
        presences: PresenceBook,
    ) -> None:
        self._services, self._session, self._context = services, session, context
        self._reports, self._presences = reports, presences
        self._pace = Pace(MESSAGES_PER_SECOND, MESSAGES_AT_ONCE, services.clock())

    async def run(self) -> None:
        """Write queued messages until the session ends, while another task reads."""
        await self._queue_state()
        reading = asyncio.create_task(self._read_all())
        try:
            while not isinstance(item := await self._session.outgoing.get(), End):
                item.server_time = self._services.clock()
                await asyncio.wait_for(self._context.write(item), WRITE_TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise UnreachableError("The peer has stopped reading.") from error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if item.error is not None:
            raise item.error

    async def _queue_state(self) -> None:
        """Queue the initial state of a session: revocations, keeper's addresses, recent announcements."""
        session = self._session
        revocations = await asyncio.to_thread(self._services.membership.revocations_jwt)
        session.push(control_pb2.CoordinatorMessage(revocations=revocations))
        status = await asyncio.to_thread(read_swarm_status, self._services.database)
        if status is not None:
            session.push(addresses_message(status.addresses))
        since = self._services.clock() - NEWS_S
        for news in (await asyncio.to_thread(announcements, self._services.database, 0, since))[-NEWS:]:
            session.push(announcement_message(news.text))

    async def _read_all(self) -> None:
        """Read messages until the peer's goodbye or an error, and then end the session."""
        error: ManyhandsError | None = None
        try:
            while (message := await self._context.read()) is not grpc.aio.EOF:
                if message.WhichOneof("body") == "goodbye":
                    break
                await asyncio.sleep(self._pace.take(self._services.clock()))
                await self._handle(message)
        except ManyhandsError as refusal:
            error = refusal
        except Exception:  # last resort: log the details, but do not send them to the peer
            logger.exception("The session of %s failed", self._session.token.member)
            error = UnreachableError(INTERNAL_FAILURE)
        self._session.end(error)

    async def _handle(self, message: control_pb2.PeerMessage) -> None:
        match message.WhichOneof("body"):
            case "report":
                await self._take_report(message.report)
            case "presence":
                await self._take_presence(message.presence)
            case "suspicion":
                await self._take_suspicion(message.suspicion)
            case "lost":
                await self._take_lost(message.lost)
            case other:
                raise RequestError(
                    f"A session's message must be a report, losses, a presence, a suspicion or a goodbye, not {other}."
                )

    async def _take_report(self, message: control_pb2.StepReport) -> None:
        """Accept or reject a report, or ask for it again if its step is ahead of the keeper's."""
        token, services = self._session.token, self._services
        try:
            report = report_from_wire(message)
            delivery = Delivery(token.device_id, self._session.id, message.seq, report, message.time)
            verdict = await self._reports.add(delivery)
        except RequestError as error:
            await services.refusals.record("report", error, token.device_id)
            verdict = ReportVerdict(accepted=False, reason=str(error))
        label = "ahead" if verdict.ahead else "accepted" if verdict.accepted else "refused"
        services.telemetry.reports.labels(label).inc()
        ack = control_pb2.ReportAck(seq=message.seq, **asdict(verdict))
        await self._session.outgoing.put(control_pb2.CoordinatorMessage(ack=ack))

    async def _take_lost(self, message: control_pb2.Lost) -> None:
        """Record lost samples that belong to no step report, or reject the message permanently."""
        token, services = self._session.token, self._services
        try:
            lost = lost_from_wire(message)
            reason = await asyncio.to_thread(
                services.ledger.record_lost, token.device_id, message.seq, lost, message.time
            )
        except RequestError as error:
            await services.refusals.record("report", error, token.device_id)
            reason = str(error)
        ack = control_pb2.ReportAck(seq=message.seq, accepted=not reason, reason=reason)
        await self._session.outgoing.put(control_pb2.CoordinatorMessage(ack=ack))

    async def _take_suspicion(self, message: control_pb2.Suspicion) -> None:
        """Store this member's suspicion of a peer, or record an invalid suspicion as a refusal."""
        services, witness = self._services, self._session.token.device_id
        claim = SuspicionReport(message.peer_id, message.kind, message.step, message.detail)
        try:
            await asyncio.to_thread(hear, services.database, services.quarantine, claim, witness, services.clock())
        except RequestError as error:
            await services.refusals.record("session", error, witness)

    async def _take_presence(self, message: control_pb2.Presence) -> None:
        """Record the device's presence, or record a refusal if the presence is implausible."""
        services, session = self._services, self._session
        await self._take_relay(relay_of(message.relay_addresses, session.token.peer_id, session.caller))
        try:
            apart = message.apart and message.state in ("training", "assisting")
            claim = checked_claim(
                message.step,
                message.own_samples,
                message.samples_per_second,
                APART if apart else message.state,
                services.clock(),
                message.device,
            )
            self._presences.note(session.id, claim)
        except RequestError as error:
            await services.refusals.record("session", error, self._session.token.device_id)

    async def _take_relay(self, relay: str) -> None:
        """Store this device's relay address if it changed; all replicas offer it to new peers."""
        services, session = self._services, self._session
        if relay != session.relay:
            session.relay = relay
            await asyncio.to_thread(offer_relay, services.database, session.id, relay)


def opened_again() -> RequestError:
    """Return the error for a session whose device has opened another session on any replica."""
    return RequestError("The same device opened another session: is it running twice?")


def announcement_message(text: str) -> control_pb2.CoordinatorMessage:
    """Return the message with an operator's announcement to all volunteers."""
    notice = control_pb2.ServerNotice(level="info", text=f"From the operator: {text}", announced=True)
    return control_pb2.CoordinatorMessage(notice=notice)


def addresses_message(addresses: Sequence[str]) -> control_pb2.CoordinatorMessage:
    """Return the message with the keeper's addresses."""
    return control_pb2.CoordinatorMessage(swarm=control_pb2.SwarmAddresses(addresses=addresses))


class PresenceBook:
    """A buffer for the latest unwritten presence of each session; used from one event loop."""

    def __init__(self, database: Database, write_every_s: float = WRITE_EVERY_S) -> None:
        self._database, self._write_every_s = database, write_every_s
        self._unwritten: dict[str, PresenceClaim] = {}
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(self, session_id: str, claim: PresenceClaim) -> None:
        """Buffer a session's latest claim until the next write."""
        self._unwritten[session_id] = claim
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_while_needed())

    async def close(self) -> None:
        """Write the remaining claims immediately."""
        self._closing.set()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write_while_needed(self) -> None:
        try:
            while self._unwritten:
                await self._rest()
                claims, self._unwritten = self._unwritten, {}
                try:
                    await asyncio.to_thread(touch_sessions, self._database, claims)
                except SQLAlchemyError:  # keep going, because the devices will report again
                    logger.exception("Cannot write who is here; trying again")
        finally:
            self._writing = None

    async def _rest(self) -> None:
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({closing}, timeout=self._write_every_s)
        finally:
            closing.cancel()
