"""Real peers in a real hivemind swarm on this machine, and the plain process that they are to equal."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, RevocationList, Role, issue_revocations, issue_token
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.models.build import build_model
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.swarm.fingerprint import DRIFT_TOLERANCE
from tests.support.ports import free_ports
from tests.support.swarm_peer import SPECIAL, VOCABULARY, Plan, fixed_batch
from tests.support.waiting import PATIENCE_S, wait_until

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
        # A group begins when all are there: these are for peers that do not come, and no busy machine needs so long.
        "matchmaking_time_s": 10.0,
        "averaging_timeout_s": 120.0,
        "statistics_expiration_s": 60.0,
        "progress_refresh_s": 0.1,
        "compression": "none",
    },
}
# For swarms that lose a peer, which the others miss for so long.
LOSING: dict[str, Any] = CONFIG | {
    "averaging": CONFIG["averaging"]
    | {"matchmaking_time_s": 2.0, "averaging_timeout_s": 30.0, "statistics_expiration_s": 6.0}
}


class Peer:
    """A started peer process and what it has said so far."""

    def __init__(self, plan: Plan, directory: Path, name: str) -> None:
        self.parameters_file = directory / f"{name}.safetensors"
        plan_file = directory / f"{name}.json"
        plan_file.write_text(json.dumps(asdict(plan) | {"parameters_file": str(self.parameters_file)}))
        script = ROOT / "tests/support/swarm_peer.py"
        self.log = directory / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(plan_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        self.last_outcome: dict[str, Any] | None = None  # of those that were waited for or passed over
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        assert self.process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def _listen(self, lines: IO[str]) -> None:
        with contextlib.suppress(ValueError):  # closed after a kill
            for line in lines:
                self._said.put(json.loads(line))

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next thing said that is `wanted`; fails the test if none comes."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            has_ended = not self._listener.is_alive()
            while not found and not self._said.empty():
                said = self._said.get()
                if said["event"] == "step":
                    self.last_outcome = said
                found.extend([said] if wanted(said) else [])
            assert found or not has_ended, f"the peer said nothing more:\n{self.log.read_text()[-3000:]}"
            return bool(found)

        wait_until("the peer has said what is waited for", has_come, self.log)
        return found[0]

    def wait_for_step(self, step: int) -> dict[str, Any]:
        """The outcome that brought the peer to `step` or beyond, or the newest if it is there already."""
        if self.last_outcome is not None and self.last_outcome["step"] >= step:
            return self.last_outcome
        return self.wait_for(lambda said: said["event"] == "step" and said["step"] >= step)

    def joined(self) -> dict[str, Any]:
        """The first message of the peer after it has joined."""
        return self.wait_for(lambda said: said["event"] == "joined")

    def go_on_to(self, step: int) -> None:
        """Have another step be the peer's last."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL to the peer and all that it forked, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in self.process.stdin, self.process.stdout:
            if stream is not None:
                stream.close()

    def stop(self) -> dict[str, torch.Tensor]:
        """Let the peer leave; returns its parameters."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=PATIENCE_S) == 0
        return load_file(self.parameters_file)


class SwarmFactory:
    """Starts peers with tokens of one authority and makes sure that none is left behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = AuthorityKey.generate()
        self.addresses: list[str] = []
        [self.keeper_port] = free_ports("127.0.0.1", 1)
        self.peers: list[Peer] = []

    def credentials(self, name: str, role: Role, member: str = "") -> Credentials:
        """A device that has joined the run, of a member of its own or of this one."""
        credentials = Credentials(self.directory / f"{name}-credentials")
        key, now = credentials.device_key, time.time()
        pseudonym = key.receipt_key(RUN).pseudonym
        token = AccessToken(
            member or name, name, key.peer_id, key.public_key.decode(), role, RUN, now, now + 3600, pseudonym
        )
        revocations = issue_revocations(self.authority, RevocationList(RUN, 0, now, frozenset()))
        credentials.store_grant(RUN, self.authority.public_bytes, issue_token(self.authority, token), revocations)
        return credentials

    def start(self, name: str, role: Role, config: dict[str, Any] = CONFIG, member: str = "", **options: Any) -> Peer:
        """Start a peer; the first keeper's address is where the others go."""
        directory = str(self.credentials(name, role, member).directory)
        known = [] if role == "keeper" else self.addresses  # the keeper is the first node
        peer = Peer(Plan(role, config, directory, known, **options), self.directory, name)
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


def train_alone(steps: int, seeds: list[int], parts: int, content: dict[str, Any] = CONFIG) -> dict[str, torch.Tensor]:
    """The same training in one plain process: every part of every peer's batch, one optimizer step for all of them."""
    config = RunConfig.from_mapping(content)
    model = build_model(config, VOCABULARY, SPECIAL)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    scheduler = build_scheduler(config, optimizer)
    backend = TorchBackend(config, model)
    for step in range(steps):
        samples = 0
        for seed in seeds:
            for part in range(parts):
                samples += backend.accumulate(fixed_batch(MICROBATCH, seed, step, part)).samples
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(samples)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {name: tensor.detach() for name, tensor in model.named_parameters()}
