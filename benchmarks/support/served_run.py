"""A served run and its volunteers by the real commands, each on a host of its own where there are hosts.

Made by `manyhands coordinator init`, served by `manyhands coordinator serve`; a volunteer is a `manyhands join` whose
lines are JSON. Used by chaos.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.support.network import Host
from coordinator.members.membership import Membership
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from peer.config.run import RunConfig
from tests.support.commands import Command
from tests.support.ports import free_ports
from tests.support.small_run import HOST

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class ServedRun:
    """A run's directory and the commands of its coordinator and its volunteers; all that is written is in `base`."""

    def __init__(self, base: Path, hosts: Mapping[str, Host] = MappingProxyType({})) -> None:
        """`hosts`: of the coordinator (`serve`) and the volunteers, by name; others use this machine's addresses."""
        self.base, self.hosts = base, hosts
        self.coordinator_dir = base / "coordinator"
        self.coordinator_dir.mkdir(exist_ok=True)

    def state_dir(self, name: str) -> Path:
        """A volunteer's directory."""
        return self.base / f"{name}-state"

    def log(self, name: str) -> Path:
        """The output of `serve` or of a volunteer's command."""
        return self.base / f"{name}.log"

    def make(self, config: RunConfig, *options: str) -> None:
        """Make the run by the operator's command. Raises `RuntimeError` with the command's message if it fails."""
        address = self._address("serve")
        control_port, web_port, swarm_port = free_ports(address, 3)
        (self.base / "run.yaml").write_text(config.to_yaml())
        ports = ("--control-port", control_port, "--web-port", web_port, "--swarm-port", swarm_port)
        where = ("--host", address, "--bind", address, "--config", self.base / "run.yaml")
        words = ("coordinator", "init", self.coordinator_dir / "run", *where, *ports, *options)
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "manyhands", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=self._enter("serve"),
        )
        if done.returncode:
            raise RuntimeError(f"no run was made: {done.stderr}")
        self.run = RunDirectory.open(self.coordinator_dir / "run")

    def start_serving(self, environment: Mapping[str, str] = NO_VARIABLES) -> Command:
        """Start the coordinator."""
        arguments = ("coordinator", "serve", str(self.run.path))
        return Command(self.log("serve"), *arguments, begin=self._enter("serve"), environment=environment)

    def invite(self, name: str) -> str:
        """Return an invite code for a member of this name."""
        database = Database(open_engine(self.run.database_url))
        membership = Membership(database, self.run.authority, self.run.config.run.name, 3600, time.time)
        code = membership.invite(name)[0]
        database.engine.dispose()
        return code

    def start_volunteer(self, name: str, invite: str) -> Command:
        """Start a volunteer, who needs the invite the first time."""
        machine = ("--threads", "1", "--compile", "off", "--data-folder", "/")  # a stay is too short to compile
        known = ("join", str(self.run.join_link), "--state-dir", str(self.state_dir(name)))
        line = ("--listen", f"/ip4/{self._address(name)}/tcp/0")
        arguments = (*known, *machine, *line, "--log-format", "json")
        return Command(self.log(name), *arguments, invite=invite, begin=self._enter(name))

    def _address(self, name: str) -> str:
        return self.hosts[name].address if name in self.hosts else HOST

    def _enter(self, name: str) -> Callable[[], None] | None:
        return self.hosts[name].enter if name in self.hosts else None
