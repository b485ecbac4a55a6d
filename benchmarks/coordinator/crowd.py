"""Many simulated volunteers, and the measurements taken while they are connected.

Volunteers have real sessions over gRPC and TLS, each with a connection, a device and a token. Their members and devices
are written directly into the database, and all volunteers share a few keys, because generating thousands of RSA keys
would take longer than the whole measurement.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import select

from auth.errors import ManyhandsError
from auth.keys import RSA_BITS, RSA_EXPONENT, TLS_NAME, DeviceKey, challenge_bytes
from auth.tokens import AccessToken, issue_token
from coordinator.context.open_run import OpenRun
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.store.models import Device, DeviceSession, Member
from peer.control.client import ControlClient
from peer.protocol import control_pb2, control_pb2_grpc
from peer.reporting.messages import StepReport
from peer.reporting.wire import report_to_wire

KEYS = 8
DEVICES_PER_MEMBER = 2
PRESENCE_EVERY_S = 3.0  # interval as in peer.control.session
SAMPLES = 8  # number of samples in each report
OPENING_AT_ONCE = 64
TOKEN_S = 6 * 3600.0
ANSWER_TIMEOUT_S = 120.0
CALL_EVERY_S = 0.25
LOOK_EVERY_S = 1.0
LONGEST_LINE_BYTES = 2**26
_OPTIONS = (
    ("grpc.ssl_target_name_override", TLS_NAME),
    ("grpc.use_local_subchannel_pool", 1),  # one connection per volunteer, as if each were a separate machine
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class Plan:
    """The timing of the simulated volunteers' reports."""

    every_s: float  # interval between two reports of a device
    spread_s: float  # time after a step over which its reports are spread evenly
    steps: int


@dataclass
class Tally:
    """Counts and times recorded by the simulated volunteers; times in seconds."""

    opened: int = 0
    lost: int = 0  # sessions that ended unexpectedly
    sent: int = 0
    refused: int = 0
    answers_s: list[float] = field(default_factory=list)  # times from a report to its acknowledgement


def prepare(run: OpenRun, count: int) -> list[Volunteer]:
    """Add `count` devices, with members and tokens, to the run's database; return a volunteer per device."""
    keys = [DeviceKey(rsa.generate_private_key(public_exponent=RSA_EXPONENT, key_size=RSA_BITS)) for _ in range(KEYS)]
    authority, name, now = run.directory.authority, run.directory.config.run.name, time.time()
    volunteers = []
    with run.database.begin() as session:
        members = [Member(name=f"volunteer {n}", created_at=now) for n in range(-(-count // DEVICES_PER_MEMBER))]
        session.add_all(members)
        for number in range(count):
            key, member = keys[number % KEYS], members[number // DEVICES_PER_MEMBER]
            identity = hashlib.sha256(f"device {number}".encode()).hexdigest()[:32]
            facts: dict[str, Any] = {"peer_id": f"Qm{identity}", "role": "trainer", "receipt_key": 2 * identity}
            row = Device(id=identity, member=member, number=number, public_key=key.public_key, created_at=now, **facts)
            session.add(row)
            text = key.public_key.decode()
            token = AccessToken(
                member.name, identity, facts["peer_id"], text, "trainer", name, now, now + TOKEN_S, 2 * identity
            )
            volunteers.append(Volunteer(number, key, name, issue_token(authority, token)))
    return volunteers


class Volunteer:
    """A simulated device with its connection and session."""

    def __init__(self, number: int, key: DeviceKey, run: str, token_jwt: str) -> None:
        self.number = number
        self._key, self._run, self._token_jwt = key, run, token_jwt
        self._sent_at: dict[int, float] = {}  # sending time by sequence number of the report
        self._step = 0
        self._presence_every_s = PRESENCE_EVERY_S
        self._call: Any = None
        self._channel: Any = None
        self._writing = asyncio.Lock()  # a gRPC stream accepts one write at a time

    async def open(self, address: str, certificate: bytes) -> bool:
        """Connect and open a session; return whether the service accepted it."""
        credentials = grpc.ssl_channel_credentials(certificate)
        self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        stub: Any = control_pb2_grpc.ControlStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Session()
        try:
            challenge = await asyncio.wait_for(self._call.read(), ANSWER_TIMEOUT_S)
            public_key = self._key.public_key
            signed = self._key.sign(challenge_bytes("session", self._run, challenge.challenge.nonce, public_key))
            hello = control_pb2.Hello(token=self._token_jwt, signature=signed, hardware="simulated")
            await self._call.write(control_pb2.PeerMessage(hello=hello))
            welcome = await asyncio.wait_for(self._call.read(), ANSWER_TIMEOUT_S)
        except (grpc.RpcError, asyncio.TimeoutError, AttributeError):  # AttributeError if the stream has ended
            return False
        return welcome is not grpc.aio.EOF and welcome.WhichOneof("body") == "welcome"

    async def read(self, tally: Tally) -> None:
        """Read the service's messages until the session ends, and time the acknowledgements."""
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                if message.WhichOneof("body") == "pace":
                    self._presence_every_s = message.pace.every_s
                elif message.WhichOneof("body") == "ack":
                    tally.answers_s.append(time.perf_counter() - self._sent_at.pop(message.ack.seq))
                    tally.refused += not message.ack.accepted
        except grpc.RpcError:
            pass
        tally.lost += 1

    async def report(self, plan: Plan, crowd: int, began: float, tally: Tally) -> None:
        """Report each step at its planned time."""
        late_s = plan.spread_s * self.number / crowd
        for step in range(1, plan.steps + 1):
            await _until(began + step * plan.every_s + late_s)
            self._step = step
            report = StepReport(
                step, SAMPLES, 7.0 - step / 100, 6.5, 0.5, crowd, None, 0.5, 1.0, elapsed_s=plan.every_s
            )
            self._sent_at[step] = time.perf_counter()
            tally.sent += 1
            if not await self._write(control_pb2.PeerMessage(report=report_to_wire(step, time.time(), report))):
                return

    async def say_it_is_here(self, crowd: int, began: float) -> None:
        """Send this device's heartbeats at the rate of a real run."""
        due = began + PRESENCE_EVERY_S * self.number / crowd
        while True:
            await _until(due)
            due += self._presence_every_s
            presence = control_pb2.Presence(
                step=self._step, own_samples=SAMPLES, samples_per_second=1.0, state="training"
            )
            if not await self._write(control_pb2.PeerMessage(presence=presence)):
                return

    async def close(self) -> None:
        """Close the connection."""
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _write(self, message: control_pb2.PeerMessage) -> bool:
        try:
            async with self._writing:
                await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError, ManyhandsError):
            return False
        return True


async def open_all(volunteers: Sequence[Volunteer], address: str, certificate: bytes) -> list[Volunteer]:
    """Open all sessions; return the volunteers whose sessions were accepted."""
    doors = asyncio.Semaphore(OPENING_AT_ONCE)

    async def open_one(volunteer: Volunteer) -> bool:
        async with doors:
            return await volunteer.open(address, certificate)

    welcomed = await asyncio.gather(*map(open_one, volunteers))
    return [volunteer for volunteer, is_in in zip(volunteers, welcomed, strict=True) if is_in]


async def _until(moment: float) -> None:
    """Sleep until this time of `time.perf_counter`."""
    await asyncio.sleep(max(0.0, moment - time.perf_counter()))


@dataclass
class Watched:
    """Measurements made outside the volunteers' sessions; times in seconds."""

    calls_s: list[float] = field(default_factory=list)  # durations of challenge calls
    ages_s: list[float] = field(default_factory=list)  # ages of devices' last heartbeats in the database
    events: int = 0  # number of events received by dashboards
    event_bytes: int = 0
    gaps_s: list[float] = field(default_factory=list)  # intervals between a dashboard's events


async def call_again_and_again(run: OpenRun, watched: Watched) -> None:
    """Time repeated challenge calls, which use neither the database nor an account."""
    client = await ControlClient.connect(run.directory.join_link, time.time)
    try:
        while True:
            began = time.perf_counter()
            await client.greet()
            watched.calls_s.append(time.perf_counter() - began)
            await asyncio.sleep(CALL_EVERY_S)
    finally:
        await client.close()


async def look_for_ages(run: OpenRun, watched: Watched) -> None:
    """Record repeatedly, from the database, the age of each open session's last heartbeat."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        watched.ages_s += await asyncio.to_thread(_ages, run)


def _ages(run: OpenRun) -> Sequence[float]:
    with run.database() as session:
        seen = session.scalars(select(DeviceSession.last_seen_at).where(DeviceSession.ended_at.is_(None))).all()
    now = time.time()
    return [now - at for at in seen]


async def keep(run: OpenRun, every_s: float, began: float, peers: int) -> None:
    """Write the swarm's state to the database every second, as a keeper does."""
    while True:
        step = max(0, int((time.perf_counter() - began) / every_s))
        await asyncio.to_thread(
            write_swarm_status,
            run.database,
            step=step,
            samples_accumulated=0,
            target_batch_size=run.directory.config.averaging.target_batch_size,
            peers=peers,
            samples_per_second=1.0,
            eta_s=None,
            addresses=(),
            now=time.time(),
        )
        await asyncio.sleep(LOOK_EVERY_S)


async def look_at_dashboard(host: str, port: int, number: int, watched: Watched) -> None:
    """Read one page's event stream; a forwarding header gives each page its own client address."""
    reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_LINE_BYTES)
    address = f"10.0.{number // 250}.{1 + number % 250}"
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\nX-Forwarded-For: {address}\r\n\r\n"
    writer.write(request.encode())
    last: float | None = None
    try:
        while line := await reader.readline():  # a long event arrives in several chunks, each preceded by its length
            watched.event_bytes += len(line)
            if line.startswith(b"event:"):
                now = time.perf_counter()
                watched.events += 1
                watched.gaps_s += [] if last is None else [now - last]
                last = now
    finally:
        writer.close()
