"""A real control plane for tests: gRPC over TLS on a free loopback port, over a real SQLite store."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from auth.credentials import Credentials
from auth.join_link import Address, JoinLink
from coordinator.context.services import RunServices, open_run_services
from coordinator.control.door import DoorLimits
from coordinator.control.server import ControlServer, TlsFiles
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.models import Refusal
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from peer.control.events import Connected, SessionEvent, Standing
from peer.control.session import Session, SessionSides, SessionTiming
from peer.protocol import control_pb2
from peer.reporting.messages import Notice, StepReport
from peer.reporting.outbox import Outbox
from peer.reporting.suspicions import WaitingSuspicions
from tests.support.stores import made_run
from tests.support.waiting import PATIENCE_S

QUICK = SessionTiming(
    handshake_s=PATIENCE_S,
    send_every_s=0.02,
    presence_every_s=0.1,
    renew_check_s=0.02,
    retry_first_s=0.05,
    retry_most_s=0.2,
    farewell_s=PATIENCE_S,
    ahead_again_s=0.02,
)
PRESENCE = control_pb2.Presence(step=4, own_samples=12, samples_per_second=3.5, state="training")
KEEPER = "/ip4/127.0.0.1/tcp/1/p2p/QmKeeper"
OTHER_S = 3601  # a token's lifetime in a run whose keys are to be others: see `made_run`
TOKENIZER = b"pretend tokenizer " * 40_000  # more than one chunk


class SteppedClock:
    """The real time plus what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class TestCoordinator:
    """A served run, and shortcuts to act on it."""

    __test__ = False

    directory: RunDirectory
    services: RunServices
    server: ControlServer
    clock: SteppedClock

    @property
    def link(self) -> JoinLink:
        link = self.directory.join_link
        return JoinLink("127.0.0.1", self.server.port, link.run, link.fingerprint)

    def invite(self, name: str) -> str:
        return self.services.membership.invite(name)[0]

    def refusals(self) -> list[tuple[str, str]]:
        """Kind and code of every recorded refusal."""
        with self.services.database() as session:
            return [(row.kind, row.code) for row in session.scalars(select(Refusal).order_by(Refusal.id))]

    async def serve_again(self, port: int) -> None:
        """Serve as a restarted coordinator would, on the port of the one that was stopped."""
        self.server = await start_server(self.directory, self.services, port)


@asynccontextmanager
async def serving(
    path: Path,
    token_lifetime_s: int = 3600,
    providers: dict[str, Any] | None = None,
    bind: str = "127.0.0.1",
    limits: DoorLimits | None = None,
    **sections: Any,
) -> AsyncIterator[TestCoordinator]:
    """A new run in `path`, with these sections of its run file, served for the time of the block.

    `providers` as in settings.yaml.
    """
    membership = {"token_lifetime_s": token_lifetime_s}
    config = RunConfig.from_mapping({"run": {"name": "test"}, "membership": membership, **sections})
    clock = SteppedClock()
    settings = Settings(bind_host=bind, providers=providers or {})
    directory = made_run(path / "run", config, settings)
    (directory.tokenizer_dir / "tokenizer.json").write_bytes(TOKENIZER)
    (directory.path / "secret").write_text("not for peers")
    with open_run_services(directory, clock) as services:
        coordinator = TestCoordinator(directory, services, await start_server(directory, services, 0, limits), clock)
        try:
            yield coordinator
        finally:
            await coordinator.server.stop()


async def start_server(
    directory: RunDirectory, services: RunServices, port: int, limits: DoorLimits | None = None
) -> ControlServer:
    tls = TlsFiles(directory.tls_key_path, directory.tls_cert_path)
    return await ControlServer.start(services, directory.settings.bind_host, port, tls, limits or DoorLimits())


@asynccontextmanager
async def connected(coordinator: TestCoordinator, others: tuple[Address, ...] = ()) -> AsyncIterator[ControlClient]:
    """A client of the coordinator; `others`: where else its link says that it may answer."""
    client = await ControlClient.connect(replace(coordinator.link, others=others), time.time)
    try:
        yield client
    finally:
        await client.close()


def write_status(coordinator: TestCoordinator, keeper: str, step: int = 3, fresh_for_s: float = 0.0) -> None:
    """As the keeper at this address does, at 7.5 samples a second, and as if it did so again for a while."""
    write_swarm_status(
        coordinator.services.database,
        step=step,
        samples_accumulated=0,
        target_batch_size=4096,
        peers=1,
        samples_per_second=7.5,
        eta_s=None,
        addresses=[keeper],
        now=coordinator.clock() + fresh_for_s,
    )


async def join_as(coordinator: TestCoordinator, client: ControlClient, directory: Path, name: str) -> Credentials:
    """Join by a fresh invite, and keep what was granted."""
    credentials = Credentials(directory)
    reply = await client.join(credentials.device_key, coordinator.invite(name))
    credentials.store_grant("test", reply.authority_key, reply.token, reply.revocations)
    return credentials


@dataclass
class Heard:
    """Everything that a session told."""

    events: list[SessionEvent] = field(default_factory=list)

    @property
    def notices(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]

    @property
    def standings(self) -> list[Standing]:
        return [event for event in self.events if isinstance(event, Standing)]

    @property
    def connected(self) -> list[bool]:
        return [event.up for event in self.events if isinstance(event, Connected)]


def a_report(step: int, samples: int = 32) -> StepReport:
    """A plausible report."""
    return StepReport(step, samples, 7.5, 6.8, 0.7, 2, None, 0.5, 12.0)


class Member:
    """One joined device: its outbox, what it heard, and its session while it runs."""

    def __init__(self, client: ControlClient, credentials: Credentials, clock: SteppedClock, directory: Path) -> None:
        self.client, self.credentials, self.clock = client, credentials, clock
        self.outbox = Outbox(directory / "outbox.sqlite3", clock)
        self.suspicions = WaitingSuspicions()
        self.heard = Heard()
        self.stop = asyncio.Event()
        self.presence: control_pb2.Presence | None = PRESENCE
        self.presence_asked_at: list[float] = []  # by the monotonic clock
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        tell = self.heard.events.append
        sides = SessionSides(self.outbox, self.suspicions, self._say_presence, self.credentials, tell)
        session = Session(
            self.client,
            sides,
            clock=self.clock,
            rng=random.Random(0),
            hardware="8 cores",
            software="0.1.0",
            timing=QUICK,
        )
        self.running = asyncio.create_task(session.run(self.stop))

    def _say_presence(self) -> control_pb2.Presence | None:
        self.presence_asked_at.append(time.monotonic())
        return self.presence

    async def leave(self) -> None:
        self.stop.set()
        assert self.running is not None
        await asyncio.wait_for(self.running, PATIENCE_S)


@asynccontextmanager
async def joined(
    coordinator: TestCoordinator, directory: Path, name: str = "Ada", others: tuple[Address, ...] = ()
) -> AsyncIterator[Member]:
    """A member whose session has not started yet; it is ended with the block."""
    async with connected(coordinator, others) as client:
        credentials = await join_as(coordinator, client, directory / name, name)
        member = Member(client, credentials, SteppedClock(), directory / name)
        try:
            yield member
        finally:
            if member.running is not None:
                member.running.cancel()
                await asyncio.gather(member.running, return_exceptions=True)
            member.outbox.close()


def samples_of(coordinator: TestCoordinator) -> dict[int, int]:
    return {row.step: row.samples for row in coordinator.services.ledger.steps()}
