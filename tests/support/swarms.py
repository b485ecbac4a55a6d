"""Real peers in a real hivemind swarm on this machine, and the plain process that they are to equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from auth.keys import AuthorityKey
from auth.tokens import Role
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import build_model
from peer.models.optimizer_setup import build_optimizer, parameter_groups, rate_in_phase
from peer.progress.fingerprint import DRIFT_TOLERANCE
from tests.support.peer_processes import PeerProcess, Said
from tests.support.ports import free_ports
from tests.support.swarm_peer import SPECIAL, VOCABULARY, Plan, fixed_batch, take_part
from tests.support.tokens import admitted
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
RUN = "swarm-test"
MICROBATCH = 4
TARGET = 32

CONFIG: dict[str, Any] = {
    "run": {"name": RUN},
    "model": {
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
    "data": {"sequence_length": 16, "microbatch_size": MICROBATCH},
    "optimizer": {"learning_rate": 0.01},
    "schedule": {"warmup_steps": 2, "total_steps": 100},
    "membership": {"newcomer_share": 1.0},  # these machines are strangers, and every sample of theirs is to count
    "averaging": {
        "target_batch_size": TARGET,
        "averaging_timeout_s": 120.0,
        "statistics_expiration_s": 60.0,
        "progress_refresh_s": 0.1,
        "compression": "none",
    },
}
# For swarms that lose a peer, which the others miss for so long.
LOSING: dict[str, Any] = CONFIG | {
    "averaging": CONFIG["averaging"] | {"averaging_timeout_s": 30.0, "statistics_expiration_s": 6.0}
}


class Peer(PeerProcess):
    """A started peer that can be told to go on, and has parameters when it leaves."""

    def __init__(self, plan: Plan, directory: Path, name: str, fresh: bool) -> None:
        self._parameters = directory / f"{name}.safetensors"
        plan = replace(plan, parameters_file=str(self._parameters))
        super().__init__(take_part, plan, directory / f"{name}.log", fresh)

    def joined(self) -> Said:
        """The first message of the peer after it has joined."""
        return self.wait_for_event("joined")

    def go_on_to(self, step: int) -> None:
        """Have another step be the peer's last."""
        self.tell(str(step))

    def stop(self) -> dict[str, torch.Tensor]:
        """Let the peer leave; returns its parameters."""
        self.tell("stop")
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0, self.log.read_text()
        return load_file(self._parameters)


class SwarmFactory:
    """Starts peers with tokens of one authority and makes sure that none is left behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = AuthorityKey.generate()
        self.addresses: list[str] = []
        [self.keeper_port] = free_ports("127.0.0.1", 1)
        self.peers: list[Peer] = []

    def start(
        self,
        name: str,
        role: Role,
        config: dict[str, Any] = CONFIG,
        *,
        fresh: bool = False,
        **options: Any,
    ) -> Peer:
        """Start a peer; the first keeper's address is where the others go. `fresh`: with an interpreter of its own."""
        credentials = admitted(self.directory / f"{name}-credentials", self.authority, RUN, member=name, role=role)
        known = [] if role == "keeper" else self.addresses  # the keeper is the first node
        peer = Peer(Plan(role, config, str(credentials.directory), known, **options), self.directory, name, fresh)
        self.peers.append(peer)
        return peer

    def start_keeper(self, **options: Any) -> Peer:
        """The keeper, ready to be joined; at the same address each time."""
        keeper = self.start("keeper", "keeper", port=self.keeper_port, **options)
        self.addresses = keeper.joined()["addresses"]
        return keeper

    def close(self) -> None:
        """End every process group that was started."""
        for peer in self.peers:
            peer.kill()


def begin_together(trainers: Sequence[Peer], last: int) -> None:
    """Have trainers that were started with 0 as their last step train up to `last`, once all of them have joined."""
    for trainer in trainers:
        trainer.joined()
    for trainer in trainers:
        trainer.go_on_to(last)


def relative_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The norm of the difference of all parameters, relative to their norm."""
    assert left.keys() == right.keys()
    difference = sum(float((left[name] - right[name]).double().square().sum()) for name in left)
    norm = sum(float(right[name].double().square().sum()) for name in right)
    return float((difference / norm) ** 0.5)


def require_one_state(together: Sequence[dict[str, torch.Tensor]]) -> None:
    """All hold the same parameters, as far as sketches tell: a state that was downloaded has moments in 16 bits."""
    for parameters in together[1:]:
        assert relative_difference(parameters, together[0]) < DRIFT_TOLERANCE


class PlainTraining:
    """The same training in one plain process; at a boundary a fresh phase gets an optimizer that is really new."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._step = config, 0
        self.model = build_model(config, VOCABULARY, SPECIAL)
        self._backend = TorchBackend(config, self.model)
        self._begin()

    def _begin(self) -> None:
        self.optimizer = build_optimizer(self._config, parameter_groups(self.model, self._config))

    def take_step(self, batches: Iterable[Batch]) -> None:
        """One optimizer step for all of these."""
        if self._config.starts_optimizer(self._step):
            self._begin()
        samples = sum(self._backend.accumulate(batch).samples for batch in batches)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(samples)
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * rate_in_phase(self._step, self._config)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._step += 1

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Where it has come to."""
        return {name: tensor.detach() for name, tensor in self.model.named_parameters()}


def train_alone(steps: int, seeds: list[int], parts: int, content: dict[str, Any] = CONFIG) -> PlainTraining:
    """Every part of every peer's batch in one plain process."""
    config = RunConfig.from_mapping(content)
    plain = PlainTraining(config)
    for step in range(steps):
        data = config.at_step(step).data
        size, length = data.microbatch_size, data.sequence_length
        plain.take_step(fixed_batch(size, seed, step, part, length) for seed in seeds for part in range(parts))
    return plain
