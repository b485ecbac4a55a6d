"""How long a device that was shut out is still accepted: by each honest peer, at each of its doors.

    python benchmarks/trust/revocation.py [--quick] [--json]

A run is served on this machine, with a volunteer; a further device, whose owner has changed its program, knocks at all
doors of keeper and volunteer all the time. It is revoked, then another one put in quarantine; a third one is revoked
while the service is down, with a token that expires soon. There is no baseline but the bound: ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from sqlalchemy import select

from auth.credentials import Credentials
from auth.tokens import issue_token
from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.small_run import SMALL_RUN
from benchmarks.trust.knocker import DOORS
from coordinator.context.open_run import OpenRun, create_run, make_settings, open_run
from coordinator.ledger.presence import online_sessions, read_swarm_status
from coordinator.members.quarantine import quarantine_device
from coordinator.run.ports import free_ports
from coordinator.store.models import Device
from peer.config.run import RunConfig
from peer.control.client import ControlClient

HOST = "127.0.0.1"
BOUND_S = 10.0
TIMEOUT_S = 600.0
OPENINGS = 4  # so many times what it takes to meet all doors open is a token valid that expires
CLOSED_ROUNDS = 3  # in succession, in which no door opened: then it is over


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all three."""
    options = argument_parser("How long a device that was shut out is still accepted.").parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        config = RunConfig.from_yaml(SMALL_RUN)
        measured = measure(Path(directory), config, short_life_s=20.0 if options.quick else 60.0)
    figures = [
        Figure(f"{name}: last let in by the {peer} ({door}) after", seconds, "s", BOUND_S, "the bound")
        for name, knocks in measured.items()
        for (peer, door), seconds in knocks.last_s.items()
    ]
    report("revocation", figures, options.json)


@dataclass(frozen=True)
class Knocks:
    """One device's answers from its peers (`keeper` and `volunteer`), before and after it was shut out."""

    before: frozenset[tuple[str, str]]  # which doors of whom let it in
    last_s: dict[tuple[str, str], float]  # how long after that each heard its last knock that was let in; 0: none was
    expired_after_s: float  # when its token expired, after it was shut out
    opened_after_s: float  # how long after its start all doors were open to it


def measure(directory: Path, config: RunConfig, short_life_s: float) -> dict[str, Knocks]:
    """Serve a run in `directory`; `short_life_s`: how long the third token is valid, or longer if all is slow."""
    with ExitStack() as stack:
        served = stack.enter_context(serve(directory, config))
        run = served.run
        stack.enter_context(volunteer(served, directory / "volunteer"))
        measured = {}
        for name, act in (
            ("revoked", lambda: run.membership.revoke("revoked")),
            ("quarantined", lambda: _quarantine(run, "quarantined")),
        ):
            measured[name] = _shut_out(served, directory / name, name, act)
        life_s = max(short_life_s, *(OPENINGS * knocks.opened_after_s for knocks in measured.values()))
        measured["service down"] = _shut_out_unheard(served, directory / "unheard", life_s)
        return measured


@dataclass
class Served:
    """A served run, and who is honest in it."""

    run: OpenRun
    service: subprocess.Popen[bytes]
    logs: Path
    peers: dict[str, str] = field(default_factory=dict)  # peer ID -> keeper, volunteer

    @property
    def keeper_address(self) -> str:
        status = read_swarm_status(self.run.database)
        return "" if status is None else status.addresses[0]


@contextmanager
def serve(directory: Path, config: RunConfig) -> Iterator[Served]:
    """Service and keeper, each a process that can be stopped alone."""
    control_port, web_port, swarm_port = free_ports(HOST, 3)
    settings = make_settings(
        public_host=HOST, bind_host=HOST, control_port=control_port, web_port=web_port, swarm_port=swarm_port
    )
    path = create_run(directory / "run", config, settings).path
    command = [sys.executable, "-m", "manyhands", "coordinator", "serve", str(path)]
    with open_run(path) as run, (directory / "serve.log").open("w") as log:
        processes = [
            subprocess.Popen([*command, part], stdout=log, stderr=log)  # noqa: S603 - our own program
            for part in ("--service-only", "--keeper-only")
        ]
        try:
            _await(lambda: read_swarm_status(run.database) is not None, "the keeper")
            served = Served(run, processes[0], directory)
            served.peers[served.keeper_address.rsplit("/p2p/", 1)[1]] = "keeper"
            yield served
        finally:
            _end(*processes)


@contextmanager
def volunteer(served: Served, state_dir: Path) -> Iterator[None]:
    """An honest one, until the end of the block; it trains by then."""
    code = served.run.membership.invite("volunteer")[0]
    link, options = str(served.run.directory.join_link), ["--threads", "1", "--listen", f"/ip4/{HOST}/tcp/0"]
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "manyhands", "join", link, "--state-dir", str(state_dir), *options],
        env=os.environ | {"MANYHANDS_INVITE": code},
        stdout=subprocess.DEVNULL,
    )
    try:
        trains = {"training", "averaging"}
        database = served.run.database
        _await(lambda: any(row.state in trains for row in online_sessions(database, time.time())), "the volunteer")
        with database() as session:
            peer_id = session.scalars(select(Device.peer_id).where(Device.member.has(name="volunteer"))).one()
        served.peers[peer_id] = "volunteer"
        yield
    finally:
        _end(process)


class Knocker:
    """A device that knocks, from when it has met every door open."""

    def __init__(self, served: Served, credentials: Credentials) -> None:
        self._names = served.peers
        self.rounds: list[dict[tuple[str, str], float]] = []  # what was open in each, and when it knocked there
        self._log = (served.logs / f"knocker-{Path(credentials.directory).name}.log").open("w")
        others = [peer for peer, name in served.peers.items() if name != "keeper"]
        arguments = [credentials.run, str(credentials.directory), served.keeper_address, *others]
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "benchmarks.trust.knocker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def next_round(self) -> None:
        """Hear how one went."""
        out: IO[str] | None = self._process.stdout
        assert out is not None
        opened = {}
        for where, at in json.loads(out.readline()).items():
            peer, door = where.split()
            opened[self._names[peer], door] = at
        self.rounds.append(opened)

    def knock_until(self, done: Callable[[], bool]) -> None:
        """Go on until the rounds so far are as wanted."""
        deadline = time.monotonic() + TIMEOUT_S
        while not done() and time.monotonic() < deadline:
            self.next_round()

    def close(self) -> None:
        """Tell it to stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        self._process.wait()


def _shut_out(served: Served, directory: Path, name: str, act: Callable[[], Any]) -> Knocks:
    """Let a device in, shut it out by `act`, and see when the last door closes."""
    return _measured(served, asyncio.run(_join(served.run, directory, name)), act)


def _shut_out_unheard(served: Served, directory: Path, life_s: float) -> Knocks:
    """The same where only the keeper hears of it: the service has stopped, and the device's token expires soon."""
    credentials = asyncio.run(_join(served.run, directory, "unheard"))
    token = credentials.access_token(time.time())

    def act() -> None:
        _end(served.service)
        served.run.membership.revoke("unheard")

    short = replace(token, expires_at=time.time() + life_s)
    credentials.store_token(issue_token(served.run.directory.authority, short))
    return _measured(served, credentials, act)


def _measured(served: Served, credentials: Credentials, act: Callable[[], Any]) -> Knocks:
    began = time.time()
    knocker = Knocker(served, credentials)
    expires_at = credentials.access_token(time.time()).expires_at
    everywhere = {(name, door) for name in served.peers.values() for door in DOORS}
    rounds = knocker.rounds
    try:
        knocker.knock_until(lambda: bool(rounds and rounds[-1].keys() == everywhere) or time.time() > expires_at - 5)
        before = frozenset[tuple[str, str]]().union(*rounds)
        opened_after_s = time.time() - began
        rounds.clear()
        act()
        at = time.time()
        knocker.knock_until(lambda: len(rounds) >= CLOSED_ROUNDS and not any(rounds[-CLOSED_ROUNDS:]))
    finally:
        knocker.close()
    last = {where: max((opened.get(where, at) - at for opened in rounds), default=0.0) for where in sorted(everywhere)}
    return Knocks(
        before, {where: max(0.0, seconds) for where, seconds in last.items()}, expires_at - at, opened_after_s
    )


async def _join(run: OpenRun, directory: Path, name: str) -> Credentials:
    """A member's device, by the front door."""
    credentials, link = Credentials(directory), run.directory.join_link
    client = await ControlClient.connect(link, time.time)
    try:
        reply = await client.join(credentials.device_key, run.membership.invite(name)[0])
    finally:
        await client.close()
    credentials.store_grant(link.run, reply.authority_key, reply.token, reply.revocations)
    return credentials


def _quarantine(run: OpenRun, name: str) -> None:
    with run.database() as session:
        device_id = session.scalars(select(Device.id).where(Device.member.has(name=name))).one()
    quarantine_device(run.database, name, device_id, "a measurement", "os:benchmark", time.time())


def _await(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not there after {TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def _end(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
