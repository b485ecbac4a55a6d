"""One process of trainer_swarm.py: `python -m benchmarks._swarm_worker PLAN` prints its outcome as JSON.

A keeper first prints its addresses, and leaves when its standard input ends.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch

from auth.credentials import Credentials
from benchmarks._trainer_variant import SPECIAL, random_batch
from benchmarks.trainer_swarm import Plan, small_config
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import build_model
from peer.models.optimizers import build_optimizer, parameter_groups
from peer.network.placement import Placement
from peer.reporting.messages import Lost, Progress, StepReport
from peer.swarm.swarm import Swarm
from peer.training.trainer import train

BATCHES = 128  # made ahead and used again and again, so that making them takes no time
POLL_S = 0.05


class RepeatedBatches:
    """A stream that never lets its reader wait, with words of its own on each peer.

    Peers with the same words would have no noise between them, and a weight without it is cut as a false claim.
    """

    wait_s = 0.0

    def __init__(self, config: RunConfig) -> None:
        vocabulary, samples = config.tokenizer.vocab_size, config.data.microbatch_size
        seeds = [secrets.randbits(48) for _ in range(BATCHES)]
        self._batches = [random_batch(config, vocabulary, samples, seed) for seed in seeds]

    def __iter__(self) -> Iterator[Batch]:
        return cycle(self._batches)


@dataclass(frozen=True)
class Taken:
    """One optimizer step, seen from a worker."""

    at: float  # seconds
    samples: int
    averaging_s: float


def main() -> None:
    """Do what the plan says."""
    plan = Plan(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    if plan.kind == "keeper":
        keep(plan)
    else:
        _say(outcome(train_alone(plan) if plan.kind == "alone" else train_in_swarm(plan)))


def outcome(taken: list[Taken]) -> dict[str, float]:
    """Speed and share of averaging from the first step to the last; the first has the start in it."""
    seconds = taken[-1].at - taken[0].at
    return {
        "samples_per_second": sum(step.samples for step in taken[1:]) / seconds,
        "averaging_share": sum(step.averaging_s for step in taken[1:]) / seconds,
    }


def train_alone(plan: Plan) -> list[Taken]:
    """A plain loop: this worker's part of the target batch, then an optimizer step of its own."""
    config = small_config()
    model = build_model(config, config.tokenizer.vocab_size, SPECIAL)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    backend = TorchBackend(config, model)
    taken: list[Taken] = []
    samples = 0
    for batch in RepeatedBatches(config):
        samples += backend.accumulate(batch).samples
        if samples >= config.averaging.target_batch_size / plan.workers:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(samples)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            taken.append(Taken(time.perf_counter(), samples, 0.0))
            samples = 0
        if len(taken) > plan.steps:
            break
    return taken


def train_in_swarm(plan: Plan) -> list[Taken]:
    """The product's own loop."""
    config = small_config()
    swarm, backend = join(plan, config)
    swarm.state.download()
    taken: list[Taken] = []

    def note(message: Progress | StepReport | Lost) -> None:
        if isinstance(message, StepReport):
            taken.append(Taken(time.perf_counter(), message.samples, message.averaging_s))

    train(backend, RepeatedBatches(config), swarm, note, lambda: len(taken) > plan.steps, time.monotonic)
    swarm.leave()
    return taken


def keep(plan: Plan) -> None:
    """Follow the swarm's steps without training."""
    swarm, _ = join(plan, small_config())
    _say(swarm.addresses)
    ended = threading.Event()

    def wait_for_end_of_input() -> None:
        os.read(0, 1)  # not sys.stdin: a forked child would wait for ever for the lock that this thread holds
        ended.set()

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    while not ended.wait(POLL_S):
        swarm.advance()
    swarm.leave()


def join(plan: Plan, config: RunConfig) -> tuple[Swarm, TorchBackend]:
    """This process's place in the swarm and what computes its gradients."""
    model = build_model(config, config.tokenizer.vocab_size, SPECIAL)
    swarm = Swarm.join(
        config=config,
        model=model,
        credentials=Credentials(Path(plan.credentials_dir)),
        initial_peers=plan.initial_peers,
        place=Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",)),
    )
    return swarm, TorchBackend(config, model)


def _say(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
