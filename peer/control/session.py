"""The peer's session with the coordinator, reconnected as needed while the agent runs.

After a handshake, the peer sends reports and presence, and receives all other messages. A lost
connection is reopened with jittered exponential back-off, while training continues. The access
token is renewed after two thirds of its lifetime. `run` raises an exception only for errors that a
person must fix, such as a revocation or an outdated version.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from auth.clock import ReadClock
from auth.credentials import Credentials
from auth.errors import (
    ExpiredTokenError,
    ManyhandsError,
    QuarantinedError,
    RequestError,
    RevokedError,
    StorageError,
    UnreachableError,
)
from auth.keys import DeviceKey, challenge_bytes
from peer.control.client import ControlClient
from peer.control.events import Connected, CutOff, KeeperTold, SessionEvent, Standing, Welcomed
from peer.protocol import MAX_HARDWARE_CHARS, MAX_VERSION_CHARS, control_pb2
from peer.protocol.errors import error_from_rpc, told
from peer.reporting.messages import ClockRead, Lost, Notice
from peer.reporting.outbox import Outbox, Pending
from peer.reporting.suspicions import WaitingSuspicions
from peer.reporting.wire import lost_to_wire, report_to_wire

logger = logging.getLogger(__name__)
MOST_ANNOUNCED = 1000  # number of announcements to remember, to avoid repeats

RENEW_AT = 2 / 3  # fraction of a token's lifetime after which to renew it
MOST_PRESENCE_S = 60.0  # longest interval that the coordinator may request
PresenceSource = Callable[[], control_pb2.Presence | None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class SessionTiming:
    """The intervals and timeouts of a session in seconds; tests shorten them."""

    handshake_s: float = 15.0
    send_every_s: float = 0.5  # interval between checks of the outbox
    presence_every_s: float = 3.0
    renew_check_s: float = 10.0
    retry_first_s: float = 1.0
    retry_most_s: float = 30.0
    farewell_s: float = 3.0  # time limit for the remaining reports and the goodbye
    window_reports: int = 64  # maximum number of reports sent but not acknowledged
    ahead_again_s: float = 20.0  # retry interval for reports ahead of the keeper


@dataclass(frozen=True)
class SessionSides:
    """The agent's side of a session: messages to send, credentials, and a callback for events."""

    outbox: Outbox
    suspicions: WaitingSuspicions
    presence: PresenceSource
    credentials: Credentials
    tell: Callable[[SessionEvent], None]  # runs on the event loop and must not block


class Session:
    """A device's session: it keeps a connection open and renews the access token."""

    def __init__(
        self,
        client: ControlClient,
        sides: SessionSides,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        hardware: str = "",
        software: str = "",
        timing: SessionTiming | None = None,
    ) -> None:
        self._client, self._sides, self._clock, self._rng = client, sides, clock, rng
        self._credentials = sides.credentials
        self._hardware, self._software = hardware[:MAX_HARDWARE_CHARS], software[:MAX_VERSION_CHARS]
        self._timing = timing or SessionTiming()
        self._announced: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Stay connected until `stop` is set, then try to send the remaining reports and a goodbye."""
        try:
            await _first_to_end(self._stay_connected(stop), self._keep_token_fresh())
        except RevokedError as error:
            self._sides.tell(CutOff(str(error)))
            raise

    async def _stay_connected(self, stop: asyncio.Event) -> None:
        failures, timing = 0, self._timing
        while not stop.is_set():
            try:
                await self._stay(stop)
                failures = 0
            except UnreachableError as error:
                failures += 1
                logger.info("No session with the coordinator (attempt %d): %s", failures, error)
                self._client.turn_to_next_address()
            rounds = failed_rounds(failures, self._client.addresses)
            await pause(stop, retry_delay_s(rounds, timing.retry_first_s, timing.retry_most_s, self._rng))

    async def _stay(self, stop: asyncio.Event) -> None:
        """Open one connection and use it until it ends. Raises `UnreachableError` if the handshake fails."""
        call = self._client.open_session()
        stream = SessionStream(call, self._sides, self._timing, self._announced)
        try:
            if await unless(stop, stream.greet(self._credentials.device_key, self._hardware, self._software)) is None:
                return
            self._sides.tell(Connected(True))
            try:
                await stream.converse(stop)
            except UnreachableError as error:
                logger.info("The session was lost: %s", error)
            finally:
                self._sides.tell(Connected(False))
        except ExpiredTokenError:
            await self._renew()  # the next connection uses the new token
        finally:
            call.cancel()

    async def _keep_token_fresh(self) -> None:
        while True:
            if self._clock() >= self._renewal_due_at():
                try:
                    await self._renew()
                except (UnreachableError, StorageError) as error:
                    logger.info("The access token could not be renewed yet: %s", error)
            await asyncio.sleep(self._timing.renew_check_s)

    def _renewal_due_at(self) -> float:
        try:
            token = self._credentials.access_token(self._clock())
        except ExpiredTokenError:
            return 0.0
        except RevokedError:  # the coordinator will send the reason for the revocation
            return math.inf
        return renewal_due_at(token.issued_at, token.expires_at)

    async def _renew(self) -> None:
        self._credentials.store_token(await self._client.renew(self._credentials.device_key))


def retry_delay_s(failures: int, first_s: float, most_s: float, rng: random.Random) -> float:
    """Return a random delay before the next attempt; its upper bound doubles with each failure."""
    return rng.uniform(0.1, 1.0) * min(most_s, first_s * 2.0 ** min(failures, 32))


def failed_rounds(failures: int, addresses: int) -> int:
    """Return the number of failed passes over all addresses; 0 in the middle of a pass."""
    return 0 if failures % addresses else failures // addresses


def renewal_due_at(issued_at: float, expires_at: float) -> float:
    """Return the Unix time at which to renew a token, from its times of issue and expiry."""
    return issued_at + RENEW_AT * (expires_at - issued_at)


class SessionStream:
    """A connection over one gRPC stream. When the stream ends, `Session` opens the next one."""

    def __init__(
        self,
        call: Any,  # grpc.aio's StreamStreamCall, which is untyped
        sides: SessionSides,
        timing: SessionTiming,
        announced: set[str],
    ) -> None:
        """Wrap a gRPC call; `announced` has the texts of the operator's announcements shown so far."""
        self._call, self._sides, self._timing = call, sides, timing
        self._outbox, self._tell = sides.outbox, sides.tell
        self._unacked: dict[int, int] = {}  # steps of unacknowledged reports, by sequence number
        self._sent_up_to = 0
        self._ahead_until: float | None = None  # time at which to resend reports that were ahead of the keeper
        self._suspicions_are_heard = self._losses_are_heard = False
        self._presence_every_s = timing.presence_every_s
        self._clock, self._announced = ReadClock(), announced

    async def greet(self, key: DeviceKey, hardware: str, software: str) -> control_pb2.Welcome:
        """Perform the handshake with the device's key. Raises the coordinator's error if it refuses."""
        try:
            return await asyncio.wait_for(self._greet(key, hardware, software), self._timing.handshake_s)
        except asyncio.TimeoutError as error:
            raise UnreachableError("The coordinator did not open the session in time.") from error

    async def converse(self, stop: asyncio.Event) -> None:
        """Exchange messages until the stream ends or `stop` is set. Raises the error that ended the stream."""
        listening = asyncio.create_task(self._listen())
        talking = asyncio.create_task(self._talk(stop))
        try:
            await asyncio.wait({listening, talking}, return_when=asyncio.FIRST_COMPLETED)
            # Only the listener receives the reason why the coordinator ended the stream.
            await asyncio.wait({listening}, timeout=self._timing.farewell_s)
        finally:
            ended = [task for task in (listening, talking) if task.done()]
            for task in (listening, talking):
                task.cancel()
            await asyncio.gather(listening, talking, return_exceptions=True)
        for task in ended:
            task.result()

    async def _greet(self, key: DeviceKey, hardware: str, software: str) -> control_pb2.Welcome:
        challenge = await self._read()
        if challenge is None or challenge.WhichOneof("body") != "challenge":
            raise RequestError("The coordinator began the session without a challenge.")
        credentials, nonce = self._sides.credentials, challenge.challenge.nonce
        hello = control_pb2.Hello(
            token=credentials.token_jwt,
            signature=key.sign(challenge_bytes("session", credentials.run, nonce, key.public_key)),
            hardware=hardware,
            software_version=software,
        )
        await self._write(control_pb2.PeerMessage(hello=hello))
        welcome = await self._read()
        if welcome is None or welcome.WhichOneof("body") != "welcome":
            raise RequestError("The coordinator did not welcome the session.")
        self._suspicions_are_heard = welcome.welcome.hears_suspicions
        self._losses_are_heard = welcome.welcome.hears_losses
        if welcome.welcome.HasField("last_seq"):
            self._send_again(welcome.welcome.last_seq)
        self._tell(Welcomed(welcome.welcome.software_version, welcome.welcome.software_address))
        return welcome.welcome

    def _send_again(self, last_seq: int) -> None:
        """Resend reports after `last_seq`, which the coordinator lost in a restore from a backup."""
        if again := self._outbox.take_back(last_seq):
            reports = "1 report" if again == 1 else f"{again:,} reports"
            them = "it is" if again == 1 else "they are"
            text = f"The coordinator was restored from a backup that lacks {reports} of this device: {them} sent again."
            self._tell(Notice("info", text))

    async def _listen(self) -> None:
        while (message := await self._read()) is not None:
            if (offset_s := self._clock.read(message.server_time)) is not None:
                self._tell(ClockRead(offset_s))
            self._handle(message)

    def _handle(self, message: control_pb2.CoordinatorMessage) -> None:
        match message.WhichOneof("body"):
            case "ack":
                self._acknowledged(message.ack)
            case "token":
                self._store(self._sides.credentials.store_token, message.token)
            case "revocations":
                self._store(self._sides.credentials.store_revocations, message.revocations)
            case "notice":
                self._hear(message.notice)
            case "swarm":
                self._tell(KeeperTold(tuple(message.swarm.addresses)))
            case "pace":
                self._presence_every_s = paced(message.pace.every_s, self._timing.presence_every_s)
            case "standing":
                now = message.standing
                self._tell(Standing(now.own_samples, now.rank, now.members, now.samples_per_second, now.time_left_s))
            case "revoked":
                raise (QuarantinedError if message.revoked.quarantined else RevokedError)(told(message.revoked.reason))

    def _hear(self, notice: control_pb2.ServerNotice) -> None:
        """Forward a notice to the agent, unless it is an announcement already forwarded."""
        text = told(notice.text)
        if notice.announced:
            if text in self._announced:
                return
            if len(self._announced) < MOST_ANNOUNCED:
                self._announced.add(text)
        self._tell(Notice(notice.level, text))

    def _store(self, store: Callable[[str], None], jwt: str) -> None:
        """Store a JWT; if the disk is full, only warn: the coordinator will send the JWT again."""
        try:
            store(jwt)
        except StorageError as error:
            self._tell(Notice("warning", str(error)))

    def _acknowledged(self, ack: control_pb2.ReportAck) -> None:
        step = self._unacked.pop(ack.seq, None)
        if step is None:
            return
        reason = told(ack.reason)
        if ack.ahead and self._outbox.keep(ack.seq):
            self._wait_for(step, ack.seq, reason)
            return
        self._ahead_until = None
        self._outbox.ack(ack.seq, accepted=ack.accepted)
        if not ack.accepted:
            self._tell(Notice("warning", f"The coordinator refused the report of step {step}: {reason}"))

    def _wait_for(self, step: int, seq: int, reason: str) -> None:
        """Postpone the report `seq` and all later ones until the keeper has reached their steps."""
        if self._ahead_until is None:
            text = f"The report of step {step}, and those after it, wait for the keeper: {reason}"
            self._tell(Notice("info", text))
        self._sent_up_to = min(self._sent_up_to, seq - 1)
        self._ahead_until = asyncio.get_running_loop().time() + self._timing.ahead_again_s

    async def _talk(self, stop: asyncio.Event) -> None:
        """Send messages until `stop` is set, then say goodbye; return if the connection is lost."""
        now = asyncio.get_running_loop().time
        presence_due = now()
        try:
            while not stop.is_set():
                await self._send_reports()
                await self._send_suspicions()
                if now() >= presence_due:
                    await self._send_presence()
                    presence_due = now() + self._presence_every_s
                await pause(stop, self._timing.send_every_s)
            await self._take_leave(deadline=now() + self._timing.farewell_s)
        except UnreachableError:
            return

    async def _send_reports(self) -> None:
        window = self._timing.window_reports
        if self._ahead_until is not None:  # send only one report, to see whether the keeper has caught up
            window = int(asyncio.get_running_loop().time() >= self._ahead_until)
        entries = self._outbox.pending(max(0, window - len(self._unacked)), after=self._sent_up_to)
        if entries:
            self._sent_up_to = entries[-1].seq  # set before sending, because a reply may reduce it
        for entry in entries:
            if isinstance(entry.report, Lost) and not self._losses_are_heard:
                self._outbox.ack(entry.seq, accepted=False)
                continue
            self._unacked[entry.seq] = entry.report.step
            await self._write(_message_of(entry))

    async def _send_suspicions(self) -> None:
        """Send the worker's suspicions of other peers, if the coordinator supports them."""
        for found in self._sides.suspicions.take() if self._suspicions_are_heard else ():
            wire = control_pb2.Suspicion(peer_id=found.peer_id, kind=found.kind, step=found.step, detail=found.detail)
            await self._write(control_pb2.PeerMessage(suspicion=wire))

    async def _send_presence(self) -> None:
        presence = self._sides.presence()
        if presence is not None:
            await self._write(control_pb2.PeerMessage(presence=presence))

    async def _take_leave(self, deadline: float) -> None:
        """Send the remaining reports until the deadline, then say goodbye."""
        while asyncio.get_running_loop().time() < deadline:
            await self._send_reports()
            if not self._unacked:
                break
            await asyncio.sleep(0.02)
        await self._write(control_pb2.PeerMessage(goodbye=control_pb2.Goodbye(reason="stopped")))
        await self._call.done_writing()

    async def _read(self) -> control_pb2.CoordinatorMessage | None:
        """Return the next message, or None if the coordinator ended the stream normally."""
        try:
            message: control_pb2.CoordinatorMessage = await self._call.read()
            if message is not grpc.aio.EOF:
                return message
            code = await self._call.code()
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        if code is not grpc.StatusCode.OK:
            raise await self._refusal(code)
        return None

    async def _refusal(self, code: grpc.StatusCode) -> ManyhandsError:
        call = self._call
        return error_from_rpc(
            grpc.aio.AioRpcError(
                code, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
            )
        )

    async def _write(self, message: control_pb2.PeerMessage) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise UnreachableError("The line to the coordinator broke.") from error


def _message_of(entry: Pending) -> control_pb2.PeerMessage:
    if isinstance(entry.report, Lost):
        return control_pb2.PeerMessage(lost=lost_to_wire(entry.seq, entry.completed_at, entry.report))
    report = report_to_wire(entry.seq, entry.completed_at, entry.report)
    return control_pb2.PeerMessage(report=report)


def paced(told_s: float, own_s: float) -> float:
    """Return the presence interval in seconds: the coordinator's request, clamped to our bounds."""
    return min(max(told_s, own_s), MOST_PRESENCE_S) if math.isfinite(told_s) else own_s


async def pause(stop: asyncio.Event, delay_s: float) -> None:
    """Sleep for `delay_s` seconds, or until `stop` is set."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), delay_s)


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of `work`, or cancel `work` and return None if the event is set first."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in working, waiting:
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
    return None if working.cancelled() else working.result()


async def _first_to_end(*coroutines: Coroutine[None, None, None]) -> None:
    """Run coroutines until one ends or fails; cancel the rest, and raise the failure, if any."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()
