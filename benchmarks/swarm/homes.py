"""Simulated homes for home_lines.py and scale.py: hosts with limited links, and one peer's process on each.

`Homes` starts the keeper and the volunteers; each process prints events, which `Peer` stores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hivemind.compression import Float16Compression

from auth.keys import AuthorityKey
from auth.tokens import Role
from benchmarks.support.members import admit
from benchmarks.support.network import Host, HostPlan, Network
from peer.config.run import RunConfig
from peer.runtime.processes import end_group
from tests.support.zygote import forking_python

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = "ours,hivemind-example,hivemind-exact"
LOCAL_STEPS = 4  # local steps per global step, each with the run's batch size
LOCAL: dict[str, Any] = {"local_steps": LOCAL_STEPS, "compression": "8bit-blockwise"}
OURS: Mapping[str, Mapping[str, Any]] = {  # system's name -> keys of `averaging` that it sets
    "ours": {},
    "delayed": {"delay": True},
    "8bit": {"compression": "8bit-blockwise"},
    "8bit-delayed": {"compression": "8bit-blockwise", "delay": True},
    "powersgd": {"powersgd_rank": 8},
    "powersgd-delayed": {"powersgd_rank": 8, "delay": True},
    "local": LOCAL,
    "local-delayed": LOCAL | {"delay": True},
}
# The options of hivemind's own example for `hivemind.Optimizer`: examples/albert/run_trainer.py, with the defaults of
# arguments.py beside it, at tag 1.1.12 (commit 1a6ff518) of github.com/learning-at-home/hivemind.
EXAMPLE: Mapping[str, Any] = {
    "matchmaking_time": 5.0,
    "averaging_timeout": 60.0,
    "offload_optimizer": True,
    "delay_optimizer_step": True,
    "delay_grad_averaging": True,
    "grad_compression": Float16Compression(),
    "state_averaging_compression": Float16Compression(),
    # The example's `bandwidth` (100 for all) is omitted: with any rate hivemind calls a solver that
    # SciPy no longer has, and rounds fail. Equal rates give equal shares, as does the default.
    "averager_opts": {"target_group_size": 256},
    "tracker_opts": {
        "min_refresh_period": 0.5,
        "max_refresh_period": 30,
        "default_refresh_period": 3,
        "expected_drift_peers": 3,
        "expected_drift_rate": 0.2,
        "metadata_expiration": 120,
    },
}
HIVEMIND: Mapping[str, Mapping[str, Any]] = {  # system's name -> options of `hivemind.Optimizer`
    "hivemind-exact": {**EXAMPLE, "delay_optimizer_step": False, "delay_grad_averaging": False},
    "hivemind-example": EXAMPLE,
}
MODULES = dict.fromkeys(OURS, "home_peer") | dict.fromkeys(HIVEMIND, "hivemind_peer")
JOIN_EVERY_S = 3.0
LEAVE_S = 60.0
POLL_S = 0.2


def systems_of(text: str) -> list[str]:
    """Parse the systems: ours, ours with other `averaging` keys, hivemind's example, or the example without delay."""
    systems = text.split(",")
    if unknown := set(systems) - set(MODULES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: take {', '.join(MODULES)}")
    return systems


@dataclass(frozen=True)
class Volunteer:
    """A volunteer: the rates of its link, and the relative speed of its device."""

    line: HostPlan
    speed: float

    @property
    def name(self) -> str:
        """Return the name of the volunteer's host."""
        return self.line.name


KEEPER = HostPlan("keeper", 25)
UNLIKE = (
    Volunteer(HostPlan("fast", 12.5), 3),
    Volunteer(HostPlan("middle", 6.25), 2),
    Volunteer(HostPlan("home", 1.25, down_mbit_per_second=6.25), 1.5),
    Volunteer(HostPlan("home-nat", 1.25, "nat", down_mbit_per_second=6.25), 1),
    Volunteer(HostPlan("middle-2", 6.25), 2),
    Volunteer(HostPlan("home-2", 1.25, down_mbit_per_second=6.25), 1.5),
)
HOMES = (
    Volunteer(HostPlan("home-nat", 0.625, "nat", down_mbit_per_second=3.125), 1),
    *(Volunteer(HostPlan(f"home-{number}", 0.625, down_mbit_per_second=3.125), 1) for number in range(1, 6)),
)
ROOM = tuple(Volunteer(HostPlan(f"room-{number}", 100), 1) for number in range(1, 7))


@dataclass(frozen=True)
class Plan:
    """The configuration of a home_peer.py or hivemind_peer.py process."""

    role: str  # "keeper" or "trainer"
    config_json: str
    address: str
    credentials_dir: str
    seconds_per_sample: float = 0.0
    rate: float | None = None  # rate of the link's slower direction, in bytes per second
    behind_nat: bool = False
    system: str = "ours"
    begin_at: float = 0.0  # monotonic time of the first sample, shared by all processes
    initial_peers: tuple[str, ...] = ()


def slower_rate(line: HostPlan) -> float:
    """Return the rate of the link's slower direction, in bytes per second."""
    return min(line.mbit_per_second, line.down_mbit_per_second or line.mbit_per_second) * 1e6 / 8


class Peer:
    """A peer's process, and the events printed so far."""

    def __init__(self, host: Host, plan: Plan, log: Path) -> None:
        self.plan, self.has_died = plan, False
        self.began_at, self.left_at = time.monotonic(), math.inf
        command = [sys.executable, "-m", f"benchmarks.swarm.{MODULES[plan.system]}", json.dumps(asdict(plan))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("w") as file:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                cwd=ROOT,
                env=environment,
                preexec_fn=host.enter,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        self.said: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of this kind so far."""
        return [said for said in list(self.said) if said["event"] == kind]

    def hear(self, kind: str) -> dict[str, Any]:
        """Wait for the first event of this kind and return it. Raises `RuntimeError` if the process ends first."""
        while not (found := self.events(kind)):
            self.look()
            if self.has_died:
                raise RuntimeError("a peer has ended; see its log (`--logs`)")
            time.sleep(POLL_S)
        return found[0]

    def look(self) -> None:
        """Record whether the process has ended by itself."""
        if self.left_at == math.inf and self.process.poll() is not None:
            self.left_at, self.has_died = time.monotonic(), True

    def leave(self) -> None:
        """Ask the process to leave by closing its input."""
        self.left_at = min(self.left_at, time.monotonic())
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self, patience_s: float) -> None:
        """Wait until the process has left, then kill the rest of its group."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        if self._thread.is_alive():
            end_group(self.process.pid)
            self.process.wait()
            self._thread.join()


def configured(config: RunConfig, system: str) -> RunConfig:
    """Return the run with the system's keys; n local steps multiply the target batch by n."""
    raw = config.model_dump(mode="json")
    raw["averaging"] |= OURS.get(system, {})
    raw["averaging"]["target_batch_size"] *= raw["averaging"]["local_steps"]
    return RunConfig.from_mapping(raw)


class Homes:
    """A context in which the keeper and all volunteers run, each on a separate host; all leave on exit."""

    def __init__(
        self,
        system: str,
        config: RunConfig,
        seconds_per_sample: Mapping[Volunteer, float],
        directory: Path,
        logs: Path,
        begin_after_s: float = 0.0,
    ) -> None:
        """Plan the peers; `begin_after_s` delays the first sample, so that all take part in the first step."""
        self._system, self._directory, self._logs = system, directory, logs
        self._config = configured(config, system)
        self._begin_at = time.monotonic() + begin_after_s
        self._seconds_per_sample = seconds_per_sample
        self.network = Network([KEEPER, *(volunteer.line for volunteer in seconds_per_sample)])
        self._authority = AuthorityKey.generate()
        self._stack = ExitStack()
        self.stays: dict[str, list[Peer]] = {volunteer.name: [] for volunteer in seconds_per_sample}  # in time order

    def __enter__(self) -> Homes:
        with ExitStack() as stack:
            self._hosts = stack.enter_context(self.network)
            stack.enter_context(forking_python())  # thirty peers with separate imports would exceed 24 GiB
            self.keeper = self._start("keeper", Plan("keeper", self._config.to_json(), "", self._admit("keeper")))
            stack.callback(self.keeper.end, LEAVE_S)
            stack.callback(self.keeper.leave)
            stack.callback(self._end_volunteers)
            self._addresses = tuple(self.keeper.hear("addresses")["addresses"])
            for volunteer in self._seconds_per_sample:
                self.start(volunteer)
                time.sleep(JOIN_EVERY_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def peers(self) -> list[Peer]:
        """Return the volunteers' processes, including those that have left."""
        return [peer for stays in self.stays.values() for peer in stays]

    def start(self, volunteer: Volunteer) -> None:
        """Start a volunteer's process, for the first time or after it has left."""
        stays, line = self.stays[volunteer.name], volunteer.line
        for gone in stays:
            gone.end(0)
        plan = Plan(
            role="trainer",
            config_json=self._config.to_json(),
            address="",
            credentials_dir=stays[0].plan.credentials_dir if stays else self._admit("trainer", volunteer.name),
            seconds_per_sample=self._seconds_per_sample[volunteer],
            rate=slower_rate(line),
            behind_nat=line.place == "nat",
            begin_at=self._begin_at,
            initial_peers=self._addresses,
        )
        stays.append(self._start(volunteer.name, plan))

    def leave(self, volunteer: Volunteer) -> None:
        """Ask a volunteer to leave."""
        self.stays[volunteer.name][-1].leave()

    def _admit(self, role: Role, name: str = "keeper") -> str:
        return admit(self._directory / name, self._authority, role, self._config.run.name)

    def _start(self, name: str, plan: Plan) -> Peer:
        host, stay = self._hosts[name], len(self.stays.get(name, []))
        log = self._logs / f"{name}{f'-{stay + 1}' if stay else ''}.log"
        return Peer(host, replace(plan, address=host.address, system=self._system), log)

    def _end_volunteers(self) -> None:
        for peer in self.peers:
            peer.leave()
        for peer in self.peers:
            peer.end(LEAVE_S)
