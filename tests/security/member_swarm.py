"""A manyhands swarm with an insider: keeper, honest trainers and one more member, all with tokens of one authority."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.receipts import open_receipt, read_receipt
from auth.tokens import Role
from peer.averaging.requirements import LEAST_FILLED
from peer.config.run import RunConfig
from peer.progress.fingerprint import drifted
from peer.reporting.suspicions import KINDS
from tests.security.member_peer import MICROBATCHES, SEEDS, MemberPlan, loss_of, microbatch, run_member
from tests.support.peer_processes import PeerProcess, Said
from tests.support.ports import free_ports
from tests.support.swarms import CONFIG as HONEST_CONFIG, TARGET, PlainTraining
from tests.support.tokens import admitted
from tests.support.waiting import wait_until

RUN = "attacked"
INSIDER = "mallory"
HONEST = ("alice", "bob")
ATTACKED_STEPS = 2  # so many under each attack; by then the insider is named
MARGIN = 0.25  # of what a clean run has learnt by the last step

CONFIG: dict[str, Any] = HONEST_CONFIG | {
    "run": {"name": RUN},
    "optimizer": {"learning_rate": 0.1},
    "schedule": {"warmup_steps": 2, "total_steps": 1000},
    "membership": {},  # what strangers claim counts in part
    "averaging": HONEST_CONFIG["averaging"] | {"averaging_timeout_s": 20.0, "statistics_expiration_s": 10.0},
}


class MemberSwarm:
    """Starts the peers and makes sure that none is left behind."""

    def __init__(
        self,
        directory: Path,
        bandwidths: Mapping[str, float] = MappingProxyType({}),
        honest: Sequence[str] = HONEST,
        insiders: Sequence[str] = (INSIDER,),
        more_devices: int = 0,
        clocks: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`bandwidths`: what peers claim their lines to be (bytes per second), by name; others: as fast as any.

        The first insider has so many more devices, without programs. `clocks`: the seconds by which members' clocks
        are ahead, by name.
        """
        self.directory, self.bandwidths = directory, bandwidths
        self.authority = AuthorityKey.generate()
        [self.keeper_port] = free_ports("127.0.0.1", 1)
        self.started: list[PeerProcess] = []
        self._started_names: list[str] = []
        self._plans: dict[str, MemberPlan] = {}
        self.keeper_credentials = self._grant("keeper", "keeper", "keeper")
        self.addresses: list[str] = []
        with ExitStack() as in_vain:  # who waits for a peer may be interrupted
            in_vain.callback(self.close)
            self.keeper = self.start_keeper()
            members = (*insiders, *honest)  # an insider is the first whom a keeper asks for the state
            names = map(str, range(1, len(members) + 1))
            devices = sorted(names, key=lambda name: Credentials(directory / name).device_key.peer_id)
            keys = [Credentials(directory / name).device_key for name in devices]  # in the members' order
            self.peer_ids = [key.peer_id for key in keys]
            self.pseudonyms = [key.receipt_key(RUN).pseudonym for key in keys]
            further = [str(self._grant(f"further-{number}", insiders[0], "trainer")) for number in range(more_devices)]
            peers = [
                self._start(
                    name,
                    MemberPlan(
                        "trainer",
                        CONFIG,
                        str(self._grant(device, name, "trainer")),
                        self.addresses,
                        1 + (number - len(insiders)) % len(members),  # the honest members' first
                        bandwidth=bandwidths.get(name),
                        more_devices=tuple(further) if number == 0 else (),
                        clock_ahead_s=clocks.get(name, 0.0),
                    ),
                )
                for number, (device, name) in enumerate(zip(devices, members, strict=True))
            ]
            for peer in peers:
                peer.wait_for_event("joined")
            self.insiders, self.honest = peers[: len(insiders)], peers[len(insiders) :]
            self.insider = self.insiders[0]
            self._names, self._directories = members, [directory / device for device in devices]
            in_vain.pop_all()

    @property
    def all_credentials(self) -> list[Credentials]:
        """Those of the keeper and of each member."""
        return [Credentials(directory) for directory in (self.keeper_credentials, *self._directories)]

    def directory_of(self, member: str) -> Path:
        """Where a member's credentials are."""
        return self._directories[self._names.index(member)]

    @property
    def witness_names(self) -> list[str]:
        """The keeper and the honest members."""
        return ["keeper", *self._names[len(self.insiders) :]]

    def witnesses(self) -> Iterator[tuple[str, PeerProcess]]:
        """Each process of the keeper and the honest members that was ever started, with its name."""
        for name, peer in zip(self._started_names, self.started, strict=True):
            if name in self.witness_names:
                yield name, peer

    def start_again(self, member: str) -> None:
        """Let a member's process, which has ended or is killed now, be followed by another at the same place."""
        number = self._names.index(member) - len(self.insiders)
        self.honest[number].kill()
        self.honest[number] = self._start(member, replace(self._plans[member], initial_peers=self.addresses))
        self.honest[number].wait_for_event("joined")

    def start_keeper(self) -> PeerProcess:
        """The keeper, at the same address each time; it holds nothing of what was trained before."""
        plan = MemberPlan("keeper", CONFIG, str(self.keeper_credentials), [], port=self.keeper_port, microbatch_s=0.03)
        keeper = self._start("keeper", plan)
        self.addresses = keeper.wait_for_event("joined")["addresses"]
        return keeper

    def _start(self, name: str, plan: MemberPlan) -> PeerProcess:
        self._plans[name] = plan
        self._started_names.append(name)
        peer = PeerProcess(run_member, plan, self.directory / f"{name}-{len(self.started)}.log")
        self.started.append(peer)
        return peer

    def _grant(self, device: str, member: str, role: Role) -> Path:
        """A device that has joined the run."""
        return admitted(self.directory / device, self.authority, RUN, member=member, role=role).directory

    @property
    def step(self) -> int:
        """The highest step that an honest trainer has told of."""
        return max(peer.step for peer in self.honest)

    def steps_at(self, step: int) -> list[Said]:
        """What each honest peer that has come to this very step said of it."""
        heard = [said for peer in [*self.honest, self.keeper] for said in peer.said]
        return [said for said in heard if said["event"] == "step" and said["step"] == step]

    def named(self, kind: str) -> list[Said]:
        """The suspicions of this kind that honest peers have raised."""
        heard = [said for peer in [*self.honest, self.keeper] for said in peer.said]
        return [said for said in heard if said["event"] == "suspicion" and said["kind"] == kind]

    def all_named(self) -> list[Said]:
        """The suspicions of any kind."""
        return [said for kind in sorted(KINDS) for said in self.named(kind)]

    def wait_for_name(self, kind: str, reason: str) -> Said:
        """The first suspicion of this kind and with this in its detail; fails the test if none comes."""

        def named() -> list[Said]:
            return [said for said in self.named(kind) if reason in said["detail"]]

        wait_until(f"somebody is named for {reason!r}", named, *[peer.log for peer in self.started], poll_s=0.1)
        return named()[0]

    def credited(self, step: int, insider: int = 0) -> int | None:
        """An insider's samples in the keeper's receipt of a step; None if the keeper has signed none (yet)."""
        signer = Credentials(self.keeper_credentials).device_key.receipt_key(RUN).pseudonym
        texts = [said["receipt"] for said in self.keeper.said if said["event"] == "step" and said["step"] == step]
        bodies = [open_receipt(read_receipt(text), signer) for text in texts if text]
        return sum(body.samples.get(self.pseudonyms[insider], 0) for body in bodies) if bodies else None

    def close(self) -> None:
        """End every process group that was started."""
        for peer in self.started:
            peer.kill()


def _training_cleanly() -> Iterator[float]:
    """The loss before and after each step of a clean run: one plain process with all of the honest members' samples."""
    config = RunConfig.from_mapping(CONFIG)
    plain = PlainTraining(config)
    batches = [microbatch(config, seed, part) for seed in SEEDS for part in range(MICROBATCHES)]
    while True:
        yield loss_of(plain.model, config, SEEDS)
        plain.take_step(batches)


_clean_run = _training_cleanly()
_clean_losses: list[float] = []  # as far as it was asked for


def clean_losses(steps: int) -> list[float]:
    """The losses of a clean run before its first step and after each of so many."""
    _clean_losses.extend(islice(_clean_run, max(0, steps + 1 - len(_clean_losses))))
    return _clean_losses[: steps + 1]


def go_on_under(swarm: MemberSwarm, attack: str, steps: int = ATTACKED_STEPS) -> int:
    """Let the insider attack for some steps, then behave; returns the last of these steps."""
    swarm.insider.tell(attack)
    last = swarm.step + steps
    for peer in swarm.honest:
        peer.wait_for_step(last)
    swarm.insider.tell("nothing")
    require_health(swarm, last)
    return last


def hold_one_state(outcomes: Sequence[Said]) -> bool:
    """Whether all who said this had the same parameters then, as far as sketches tell."""
    return not any(drifted(said["sketch"], outcomes[0]["sketch"]) for said in outcomes)


def require_health(swarm: MemberSwarm, last: int) -> None:
    """All honest peers hold the same finite parameters after each step of a nearly full batch, and learn as ever."""
    losses = clean_losses(last)
    for step in range(1, last + 1):
        outcomes = swarm.steps_at(step)
        assert hold_one_state(outcomes), outcomes
        for said in outcomes:
            assert math.isfinite(said["loss"])
            assert said["group_samples"] is None or said["group_samples"] >= LEAST_FILLED * TARGET
            assert said["loss"] <= losses[step] + MARGIN * (losses[0] - losses[last])
