"""A served run and its volunteers for chaos.py: real commands on PostgreSQL, each of which is kept alive.

The run is made by `manyhands coordinator init` and served by `manyhands coordinator serve`; each volunteer is a
`manyhands join` whose lines are JSON, on a host of its own where there are hosts. A command that ends is started again,
as a service manager would do it; one that no fault has killed is counted as a failure of its own. What the volunteers
say of their steps is read here, so it does not depend on the database, which is killed as well.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from auth.credentials import Credentials
from benchmarks.support.network import Host, Network
from benchmarks.trust.offset_clock import COMPILER, OffsetClock
from coordinator.members.membership import Membership
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from peer.config.run import RunConfig
from tests.support.commands import Command, service_of
from tests.support.ports import free_ports
from tests.support.postgres import PostgresServer
from tests.support.small_run import HOST, small_config

NAMES = ("ada", "grace", "joan")
TARGET_BATCH_SIZE = 2048
POLL_S = 0.1
RESTART_AFTER_S = 2.0
START_TIMEOUT_S = 600.0
HOUR_S = 3600.0


@dataclass(frozen=True)
class Told:
    """A step of which a volunteer has told."""

    name: str
    at: float  # monotonic, when it was read
    era: int
    step: int
    samples: int
    samples_per_second: float


@dataclass
class Kept:
    """A command that is started again when it ends."""

    start: Callable[[], Command]
    command: Command
    starts: int = 1
    due_at: float | None = None  # monotonic: when it is started again
    own_ends: list[int] = field(default_factory=list)  # exit codes where it was not killed

    def tend(self) -> None:
        """Notice its end; start it again a little later."""
        if self.due_at is None and (exit_code := self.command.process.poll()) is not None:
            if exit_code != -signal.SIGKILL:
                self.own_ends.append(exit_code)
            self.command.kill()  # what it may have left
            self.due_at = time.monotonic() + RESTART_AFTER_S
        elif self.due_at is not None and time.monotonic() >= self.due_at:
            self.command, self.due_at, self.starts = self.start(), None, self.starts + 1


@dataclass
class Tail:
    """The JSON lines of a volunteer's log as they come."""

    path: Path
    read_bytes: int = 0
    rest: bytes = b""
    progress_bytes: int = 0

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as log:
            log.seek(self.read_bytes)
            new = log.read()
        self.read_bytes += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # a line of a library's, or cut off by a kill
                continue
            if isinstance(event, dict) and "event" in event:
                found.append(event)
                self.progress_bytes += len(line) + 1 if event["event"] in {"Progress", "StepReport"} else 0
        return found


class ChaosSite:
    """The run's directory, its coordinator and its volunteers; all that is written is in `base`.

    `server` is the PostgreSQL that the run is in. Where there are hosts, of the coordinator (`serve`) and the
    volunteers, by name, PostgreSQL and this process are on that of `serve`; others use this machine's addresses.
    """

    def __init__(
        self,
        base: Path,
        server: PostgresServer,
        network: Network | None = None,
        hosts: Mapping[str, Host] = MappingProxyType({}),
    ) -> None:
        self.base, self.server, self.network, self.hosts = base, server, network, hosts
        self.coordinator_dir = base / "coordinator"
        self.coordinator_dir.mkdir(exist_ok=True)
        self.kept: dict[str, Kept] = {}
        self.told: list[Told] = []
        self.began_at = time.monotonic()
        self.clock = OffsetClock(base) if COMPILER else None
        self._tails: dict[str, Tail] = {}

    def state_dir(self, name: str) -> Path:
        """A volunteer's directory."""
        return self.base / f"{name}-state"

    def log(self, name: str) -> Path:
        """The output of `serve` or of a volunteer's command."""
        return self.base / f"{name}.log"

    def _address(self, name: str) -> str:
        return self.hosts[name].address if name in self.hosts else HOST

    def _enter(self, name: str) -> Callable[[], None] | None:
        return self.hosts[name].enter if name in self.hosts else None

    # Starting and stopping

    def make_small_run(self) -> None:
        """Make a run of a tiny model in the database. Raises `RuntimeError` with the command's message if it fails."""
        content = small_config(self.base).model_dump(mode="json", exclude_unset=True)
        content["averaging"] |= {"target_batch_size": TARGET_BATCH_SIZE}
        content["membership"] = {"newcomer_share": 1.0}  # of three machines one may be all that is left
        content["checkpoints"] = {"every_steps": 4, "keep": 4}
        (url := self.base / "database-url").write_text(self.server.url())
        url.chmod(0o600)
        (self.base / "run.yaml").write_text(RunConfig.from_mapping(content).to_yaml())
        address, directory = self._address("serve"), self.coordinator_dir / "run"
        control_port, web_port, swarm_port = free_ports(address, 3)
        ports = ("--control-port", control_port, "--web-port", web_port, "--swarm-port", swarm_port)
        where = ("--host", address, "--bind", address, "--config", self.base / "run.yaml", "--database-url-file", url)
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "manyhands", "coordinator", "init", *map(str, (directory, *where, *ports))],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=self._enter("serve"),
        )
        if done.returncode:
            raise RuntimeError(f"no run was made: {done.stderr}")
        self.run = RunDirectory.open(directory)

    def serve(self) -> None:
        """Start the coordinator, under a clock that can be set where there is a C compiler."""
        words, environment = ("coordinator", "serve", str(self.run.path)), self.clock.environment if self.clock else {}
        begin = self._enter("serve")
        self._keep("serve", lambda: Command(self.log("serve"), *words, begin=begin, environment=environment))

    def join(self, name: str) -> None:
        """Start a volunteer, by an invite that it needs the first time."""
        database = Database(open_engine(self.run.database_url))
        membership = Membership(database, self.run.authority, self.run.config.run.name, 3600, time.time)
        [invite] = membership.invite(name)
        database.engine.dispose()
        machine = ("--threads", "1", "--compile", "off", "--data-folder", "/")  # a stay is too short to compile
        line = ("--listen", f"/ip4/{self._address(name)}/tcp/0", "--log-format", "json")
        words = ("join", str(self.run.join_link), "--state-dir", str(self.state_dir(name)), *machine, *line)
        self._tails[name] = Tail(self.log(name))
        self._keep(name, lambda: Command(self.log(name), *words, invite=invite, begin=self._enter(name)))

    def _keep(self, name: str, start: Callable[[], Command]) -> None:
        self.kept[name] = Kept(start, start())

    def stop_in_order(self) -> dict[str, int | None]:
        """Let the volunteers leave, then the coordinator; returns each exit code, None where it had to be killed."""
        codes: dict[str, int | None] = {}
        for name in [*(name for name in self.kept if name != "serve"), "serve"]:
            try:
                codes[name], left = self.kept[name].command.terminate()
                if left:
                    codes[name] = None
            except psutil.Error:
                codes[name] = None
        self.listen()
        return codes

    def close(self) -> None:
        """Kill whatever is left."""
        for kept in self.kept.values():
            kept.command.kill()

    # Watching

    def listen(self) -> None:
        """Take in what the volunteers have said."""
        for name, tail in self._tails.items():
            for event in tail.events():
                if event["event"] == "StepReport":
                    facts = (event[key] for key in ("era", "step", "samples", "samples_per_second"))
                    self.told.append(Told(name, time.monotonic(), *facts))

    def tick(self) -> None:
        """Listen, and start again what has ended."""
        self.listen()
        for kept in self.kept.values():
            kept.tend()
        time.sleep(POLL_S)

    def wait_until(self, true: Callable[[], object], seconds: float) -> bool:
        """Go on until this is so; returns whether it came to be within these seconds."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                return False
            self.tick()
        return True

    def run_for(self, seconds: float) -> None:
        """Go on for so long."""
        self.wait_until(lambda: False, seconds)

    def step_times(self) -> list[float]:
        """When each further step was first told of; a step that is done again in another era counts again."""
        seen: set[tuple[int, int]] = set()
        times = []
        for told in self.told:
            if (told.era, told.step) not in seen:
                seen.add((told.era, told.step))
                times.append(told.at)
        return times

    def ended(self, starts: Mapping[str, int]) -> list[str]:
        """The commands that have ended since they had been started so often."""
        return [name for name, kept in self.kept.items() if kept.due_at is not None or kept.starts > starts[name]]

    def starts(self) -> dict[str, int]:
        """How often each command was started."""
        return {name: kept.starts for name, kept in self.kept.items()}

    def newest_of(self, name: str) -> Told | None:
        """The last step that a volunteer has told of."""
        return next((told for told in reversed(self.told) if told.name == name), None)

    def log_bytes_per_hour(self) -> dict[str, float]:
        """How fast each log has grown, without the lines of steps and progress that a volunteer was asked for."""
        hours = (time.monotonic() - self.began_at) / HOUR_S
        sizes = {"serve": self.log("serve").stat().st_size}
        for name, tail in self._tails.items():
            sizes[name] = self.log(name).stat().st_size - tail.progress_bytes
            worker_log = max(self.state_dir(name).rglob("worker.log"), default=None)
            sizes[f"{name}'s worker"] = worker_log.stat().st_size if worker_log else 0
        return {name: size / hours for name, size in sizes.items()}

    # Finding processes

    def root(self, name: str) -> psutil.Process:
        """The process of `serve` or of a volunteer's command."""
        return self.kept[name].command.process

    def swarm_process(self, name: str) -> psutil.Process | None:
        """The worker below a volunteer's command, the keeper below `serve`: the child with a p2p daemon below it."""
        for child in self.root(name).children():
            if any(process.name() == "p2pd" for process in child.children(recursive=True)):
                return child
        return None

    def daemon(self, name: str) -> psutil.Process | None:
        """The p2p daemon of a volunteer or the keeper."""
        return next(iter(self.kept[name].command.daemons()), None)

    def dht_process(self, name: str) -> psutil.Process | None:
        """The process that has started the daemon."""
        daemon = self.daemon(name)
        return daemon.parent() if daemon else None

    def averager(self, name: str) -> psutil.Process | None:
        """Another process that the worker or the keeper has forked: one of its averagers."""
        above = self.swarm_process(name)
        children = above.children() if above else []
        forked = [
            child for child in children if child.name() not in {"p2pd", "torch_shm_manager"} and not child.children()
        ]
        return forked[-1] if forked else None

    def service(self) -> psutil.Process | None:
        """The coordinator's process that volunteers are connected to."""
        try:
            return service_of(self.kept["serve"].command, self.run.settings.control_port)
        except AssertionError:
            return None

    def device_ids(self) -> dict[str, str]:
        """Each volunteer's libp2p identity."""
        return {name: Credentials(self.state_dir(name)).device_key.peer_id for name in self._tails}
