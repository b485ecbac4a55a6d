"""One connected stay: the handshake, then reports and presence up, everything else down.

`peer.control.session` opens one stay after another; this module knows nothing of reconnecting.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from auth.credentials import Credentials
from auth.errors import ManyhandsError, QuarantinedError, RequestError, RevokedError, UnreachableError
from auth.keys import DeviceKey, challenge_bytes
from peer.control.events import KeeperTold, SessionEvent, Standing, Welcomed
from peer.protocol import control_pb2
from peer.protocol.errors import error_from_rpc, told
from peer.reporting.messages import Lost, Notice
from peer.reporting.outbox import Outbox, Pending
from peer.reporting.suspicions import WaitingSuspicions
from peer.reporting.wire import lost_to_wire, report_to_wire

MOST_PRESENCE_S = 60.0  # whatever the coordinator asks for: a peer is not silent for longer
PresenceSource = Callable[[], control_pb2.Presence | None]
Result = TypeVar("Result")


def paced(told_s: float, own_s: float) -> float:
    """Return the seconds between two words of presence: as told, but neither less than this peer's own nor for ever."""
    return min(max(told_s, own_s), MOST_PRESENCE_S) if math.isfinite(told_s) else own_s


@dataclass(frozen=True)
class SessionTiming:
    """The session's intervals, in seconds; tests shorten them."""

    handshake_s: float = 15.0
    send_every_s: float = 0.5  # looks into the outbox this often
    presence_every_s: float = 3.0
    renew_check_s: float = 10.0
    retry_first_s: float = 1.0
    retry_most_s: float = 30.0
    farewell_s: float = 3.0  # for the last reports and the goodbye
    window_reports: int = 64  # sent and not yet acknowledged
    ahead_again_s: float = 20.0  # the first report that is ahead of the keeper is sent again so often


@dataclass(frozen=True)
class SessionSides:
    """The agent's side of a session: what is sent, where tokens and revocations are kept, who hears everything else."""

    outbox: Outbox
    suspicions: WaitingSuspicions
    presence: PresenceSource
    credentials: Credentials
    tell: Callable[[SessionEvent], None]  # called on the event loop, so it must not block


@dataclass(frozen=True)
class Greeting:
    """The identity of the device that opens the session, and its description of itself."""

    run: str
    key: DeviceKey
    token: str  # JWT
    hardware: str
    software: str


class SessionStream:
    """One session over an open gRPC stream."""

    def __init__(
        self,
        call: Any,  # grpc.aio's StreamStreamCall, which has no annotations
        sides: SessionSides,
        timing: SessionTiming,
    ) -> None:
        self._call, self._sides, self._timing = call, sides, timing
        self._outbox, self._tell = sides.outbox, sides.tell
        self._unacked: dict[int, int] = {}  # report number -> its step
        self._sent_up_to = 0
        self._ahead_until: float | None = None  # by the loop's clock; None: nothing is known to be ahead of the keeper
        self._suspicions_are_heard = self._losses_are_heard = False
        self._presence_every_s = timing.presence_every_s

    async def greet(self, greeting: Greeting) -> control_pb2.Welcome:
        """Answer the coordinator's nonce with the device's signature; raises the coordinator's refusal."""
        try:
            return await asyncio.wait_for(self._greet(greeting), self._timing.handshake_s)
        except asyncio.TimeoutError as error:
            raise UnreachableError("The coordinator did not open the session in time.") from error

    async def converse(self, stop: asyncio.Event) -> None:
        """Talk and listen until the line ends or `stop` is set; raises the coordinator's reason to end it, if any."""
        listening = asyncio.create_task(self._listen())
        talking = asyncio.create_task(self._talk(stop))
        try:
            await asyncio.wait({listening, talking}, return_when=asyncio.FIRST_COMPLETED)
            # Whoever ended first: only the listener learns why the coordinator ended the stream.
            await asyncio.wait({listening}, timeout=self._timing.farewell_s)
        finally:
            ended = [task for task in (listening, talking) if task.done()]
            for task in (listening, talking):
                task.cancel()
            await asyncio.gather(listening, talking, return_exceptions=True)
        for task in ended:
            task.result()

    async def _greet(self, greeting: Greeting) -> control_pb2.Welcome:
        challenge = await self._read()
        if challenge is None or challenge.WhichOneof("body") != "challenge":
            raise RequestError("The coordinator began the session without a challenge.")
        key, nonce = greeting.key, challenge.challenge.nonce
        hello = control_pb2.Hello(
            token=greeting.token,
            signature=key.sign(challenge_bytes("session", greeting.run, nonce, key.public_key)),
            hardware=greeting.hardware,
            software_version=greeting.software,
        )
        await self._write(control_pb2.PeerMessage(hello=hello))
        welcome = await self._read()
        if welcome is None or welcome.WhichOneof("body") != "welcome":
            raise RequestError("The coordinator did not welcome the session.")
        self._suspicions_are_heard = welcome.welcome.hears_suspicions
        self._losses_are_heard = welcome.welcome.hears_losses
        self._tell(Welcomed(welcome.welcome.software_version, welcome.welcome.software_address))
        return welcome.welcome

    async def _listen(self) -> None:
        while (message := await self._read()) is not None:
            self._handle(message)

    def _handle(self, message: control_pb2.CoordinatorMessage) -> None:
        match message.WhichOneof("body"):
            case "ack":
                self._acknowledged(message.ack)
            case "token":
                self._sides.credentials.store_token(message.token)
            case "revocations":
                self._sides.credentials.store_revocations(message.revocations)
            case "notice":
                self._tell(Notice(message.notice.level, told(message.notice.text)))
            case "swarm":
                self._tell(KeeperTold(tuple(message.swarm.addresses)))
            case "pace":
                self._presence_every_s = paced(message.pace.every_s, self._timing.presence_every_s)
            case "standing":
                now = message.standing
                self._tell(Standing(now.own_samples, now.rank, now.members, now.samples_per_second, now.time_left_s))
            case "revoked":
                raise (QuarantinedError if message.revoked.quarantined else RevokedError)(told(message.revoked.reason))

    def _acknowledged(self, ack: control_pb2.ReportAck) -> None:
        step = self._unacked.pop(ack.seq, None)
        if step is None:
            return
        reason = told(ack.reason)
        if ack.ahead and self._outbox.keep(ack.seq):
            self._wait_for(step, ack.seq, reason)
            return
        self._ahead_until = None
        self._outbox.ack(ack.seq)
        if not ack.accepted:
            self._tell(Notice("warning", f"The coordinator refused the report of step {step}: {reason}"))

    def _wait_for(self, step: int, seq: int, reason: str) -> None:
        """Go back to this report: it and what follows, which is of later steps, are for later."""
        if self._ahead_until is None:
            text = f"The report of step {step}, and those after it, wait for the keeper: {reason}"
            self._tell(Notice("info", text))
        self._sent_up_to = min(self._sent_up_to, seq - 1)
        self._ahead_until = asyncio.get_running_loop().time() + self._timing.ahead_again_s

    async def _talk(self, stop: asyncio.Event) -> None:
        """Send until `stop`, then take leave; a line that breaks meanwhile ends this quietly, the listener says why."""
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
        if self._ahead_until is not None:  # one is enough to ask whether the keeper has come so far
            window = int(asyncio.get_running_loop().time() >= self._ahead_until)
        entries = self._outbox.pending(max(0, window - len(self._unacked)), after=self._sent_up_to)
        if entries:
            self._sent_up_to = entries[-1].seq  # before the first is sent: an answer may go back behind it meanwhile
        for entry in entries:
            if isinstance(entry.report, Lost) and not self._losses_are_heard:
                self._outbox.ack(entry.seq)
                continue
            self._unacked[entry.seq] = entry.report.step
            await self._write(_message_of(entry))

    async def _send_suspicions(self) -> None:
        """Send a worker's suspicions of others; an older coordinator gets none, as it would end the session."""
        for found in self._sides.suspicions.take() if self._suspicions_are_heard else ():
            wire = control_pb2.Suspicion(peer_id=found.peer_id, kind=found.kind, step=found.step, detail=found.detail)
            await self._write(control_pb2.PeerMessage(suspicion=wire))

    async def _send_presence(self) -> None:
        presence = self._sides.presence()
        if presence is not None:
            await self._write(control_pb2.PeerMessage(presence=presence))

    async def _take_leave(self, deadline: float) -> None:
        """Deliver what is still in the outbox while there is time, then say goodbye."""
        while asyncio.get_running_loop().time() < deadline:
            await self._send_reports()
            if not self._unacked:
                break
            await asyncio.sleep(0.02)
        await self._write(control_pb2.PeerMessage(goodbye=control_pb2.Goodbye(reason="stopped")))
        await self._call.done_writing()

    async def _read(self) -> control_pb2.CoordinatorMessage | None:
        """The next message, or None when the coordinator ended the stream in order."""
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


async def pause(stop: asyncio.Event, delay_s: float) -> None:
    """Sleep, but no longer than until `stop` is set."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stop.wait(), delay_s)


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Do the work, and return or raise what it does; None if the event is set first, which cancels the work."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in working, waiting:
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
    return None if working.cancelled() else working.result()
