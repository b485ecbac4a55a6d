"""A run's coordinator and volunteers for chaos.py: real commands with PostgreSQL, each restarted when it exits.

The run is created by `manyhands coordinator init` and served by `manyhands coordinator serve`. Each volunteer is a
`manyhands join` with JSON output, on a separate host if there are hosts. A command that exits is restarted, as by a
service manager; an exit without a fault counts as a failure of the command. The volunteers' steps are read from their
output rather than from the database, because faults also kill the database.
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
    """A step reported in a volunteer's output."""

    name: str
    at: float  # monotonic time at which the line was read
    era: int
    step: int
    samples: int
    samples_per_second: float


@dataclass
class Kept:
    """A command that is restarted when it exits."""

    start: Callable[[], Command]
    command: Command
    starts: int = 1
    due_at: float | None = None  # monotonic time of the restart
    own_ends: list[int] = field(default_factory=list)  # exit codes of exits without a fault

    def tend(self) -> None:
        """Restart the command a short time after it exits."""
        if self.due_at is None and (exit_code := self.command.process.poll()) is not None:
            if exit_code != -signal.SIGKILL:
                self.own_ends.append(exit_code)
            self.command.kill()  # kills any remaining child processes
            self.due_at = time.monotonic() + RESTART_AFTER_S
        elif self.due_at is not None and time.monotonic() >= self.due_at:
            self.command, self.due_at, self.starts = self.start(), None, self.starts + 1


@dataclass
class Tail:
    """A reader of new JSON lines in a volunteer's log."""

    path: Path
    read_bytes: int = 0
    rest: bytes = b""
    progress_bytes: int = 0

    def events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
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
            except ValueError:  # a line from a library, or truncated by a kill
                continue
            if isinstance(event, dict) and "event" in event:
                found.append(event)
                self.progress_bytes += len(line) + 1 if event["event"] in {"Progress", "StepReport"} else 0
        return found


class ChaosSite:
    """A run's directory, coordinator and volunteers, with all files in `base`.

    `server` is the PostgreSQL with the run's database. `hosts` maps `serve` and the volunteers' names to hosts;
    PostgreSQL and this process are on the host of `serve`. Without hosts, all processes use this machine's addresses.
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
        """Return a volunteer's state directory."""
        return self.base / f"{name}-state"

    def log(self, name: str) -> Path:
        """Return the log file of `serve` or of a volunteer's command."""
        return self.base / f"{name}.log"

    def _address(self, name: str) -> str:
        return self.hosts[name].address if name in self.hosts else HOST

    def _enter(self, name: str) -> Callable[[], None] | None:
        return self.hosts[name].enter if name in self.hosts else None

    # Starting and stopping of processes

    def make_small_run(self) -> None:
        """Create a run of a tiny model. Raises `RuntimeError` with the command's message if it fails."""
        content = small_config(self.base).model_dump(mode="json", exclude_unset=True)
        content["averaging"] |= {"target_batch_size": TARGET_BATCH_SIZE}
        content["membership"] = {"newcomer_share": 1.0}  # one of three machines may compute a whole batch
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
            raise RuntimeError(f"cannot create the run: {done.stderr}")
        self.run = RunDirectory.open(directory)

    def serve(self) -> None:
        """Start the coordinator, with a settable clock if there is a C compiler."""
        words, environment = ("coordinator", "serve", str(self.run.path)), self.clock.environment if self.clock else {}
        begin = self._enter("serve")
        self._keep("serve", lambda: Command(self.log("serve"), *words, begin=begin, environment=environment))

    def join(self, name: str) -> None:
        """Start a volunteer, with an invite on the first start."""
        database = Database(open_engine(self.run.database_url))
        membership = Membership(database, self.run.authority, self.run.config.run.name, 3600, time.time)
        [invite] = membership.invite(name)
        database.engine.dispose()
        machine = ("--threads", "1", "--compile", "off", "--data-folder", "/")  # sessions are too short for compilation
        line = ("--listen", f"/ip4/{self._address(name)}/tcp/0", "--log-format", "json")
        words = ("join", str(self.run.join_link), "--state-dir", str(self.state_dir(name)), *machine, *line)
        self._tails[name] = Tail(self.log(name))
        self._keep(name, lambda: Command(self.log(name), *words, invite=invite, begin=self._enter(name)))

    def _keep(self, name: str, start: Callable[[], Command]) -> None:
        self.kept[name] = Kept(start, start())

    def stop_in_order(self) -> dict[str, int | None]:
        """Stop the volunteers, then the coordinator; return each exit code, or None if it had to be killed."""
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
        """Kill all remaining processes."""
        for kept in self.kept.values():
            kept.command.kill()

    # Observation of the run

    def listen(self) -> None:
        """Read the volunteers' new events."""
        for name, tail in self._tails.items():
            for event in tail.events():
                if event["event"] == "StepReport":
                    facts = (event[key] for key in ("era", "step", "samples", "samples_per_second"))
                    self.told.append(Told(name, time.monotonic(), *facts))

    def tick(self) -> None:
        """Read new events, and restart commands that have exited."""
        self.listen()
        for kept in self.kept.values():
            kept.tend()
        time.sleep(POLL_S)

    def wait_until(self, true: Callable[[], object], seconds: float) -> bool:
        """Tick until `true()` returns True; return False on timeout."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                return False
            self.tick()
        return True

    def run_for(self, seconds: float) -> None:
        """Tick for this many seconds."""
        self.wait_until(lambda: False, seconds)

    def step_times(self) -> list[float]:
        """Return the time of each step's first report; a step repeated in another era counts again."""
        seen: set[tuple[int, int]] = set()
        times = []
        for told in self.told:
            if (told.era, told.step) not in seen:
                seen.add((told.era, told.step))
                times.append(told.at)
        return times

    def ended(self, starts: Mapping[str, int]) -> list[str]:
        """Return the commands that have exited since `starts` was recorded."""
        return [name for name, kept in self.kept.items() if kept.due_at is not None or kept.starts > starts[name]]

    def starts(self) -> dict[str, int]:
        """Return the number of starts of each command."""
        return {name: kept.starts for name, kept in self.kept.items()}

    def newest_of(self, name: str) -> Told | None:
        """Return the last step that a volunteer reported."""
        return next((told for told in reversed(self.told) if told.name == name), None)

    def log_bytes_per_hour(self) -> dict[str, float]:
        """Return the growth rate of each log, excluding lines about steps and progress."""
        hours = (time.monotonic() - self.began_at) / HOUR_S
        sizes = {"serve": self.log("serve").stat().st_size}
        for name, tail in self._tails.items():
            sizes[name] = self.log(name).stat().st_size - tail.progress_bytes
            worker_log = max(self.state_dir(name).rglob("worker.log"), default=None)
            sizes[f"{name}'s worker"] = worker_log.stat().st_size if worker_log else 0
        return {name: size / hours for name, size in sizes.items()}

    # Look-up of processes

    def root(self, name: str) -> psutil.Process:
        """Return the process of `serve` or of a volunteer's command."""
        return self.kept[name].command.process

    def swarm_process(self, name: str) -> psutil.Process | None:
        """Return a volunteer's worker or the coordinator's keeper: the child process that has a p2p daemon."""
        for child in self.root(name).children():
            if any(process.name() == "p2pd" for process in child.children(recursive=True)):
                return child
        return None

    def daemon(self, name: str) -> psutil.Process | None:
        """Return the p2p daemon of a volunteer or the keeper."""
        return next(iter(self.kept[name].command.daemons()), None)

    def node(self, name: str) -> psutil.Process | None:
        """Return the swarm node, the parent of the daemon."""
        daemon = self.daemon(name)
        return daemon.parent() if daemon else None

    def service(self) -> psutil.Process | None:
        """Return the coordinator's process to which volunteers are connected."""
        try:
            return service_of(self.kept["serve"].command, self.run.settings.control_port)
        except AssertionError:
            return None

    def device_ids(self) -> dict[str, str]:
        """Return each volunteer's libp2p identity."""
        return {name: Credentials(self.state_dir(name)).device_key.peer_id for name in self._tails}
