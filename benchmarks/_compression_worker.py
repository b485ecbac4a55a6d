"""One peer of compression.py: `python -m benchmarks._compression_worker PLAN` takes part in swarms as it is told.

Each line of its standard input is a task, then (for a trainer) the word to begin, then the word to leave. It says that
it is ready, then for each task that it has joined, what came of it, and that it has left.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from auth.credentials import Credentials
from benchmarks.compression import Plan
from peer.backends.local_steps import own_model, with_local_steps
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, open_batches
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.held_out import draw_samples, evaluate
from peer.network.placement import Placement
from peer.network.traffic import BYTES_PER_S_OF_MBIT, Throttle, Traffic
from peer.swarm.swarm import Swarm
from peer.training.trainer import train

POLL_S = 0.03


class RepeatedBatches:
    """A stream that never lets its reader wait."""

    wait_s = 0.0

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return cycle(self._batches)


def main() -> None:
    """Take part in whatever is asked for, until nothing more is."""
    plan = Plan(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.ERROR)
    for noisy in ("hivemind", "asyncio"):  # on leaving a swarm, of which this process leaves several
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    config, tokenizer_dir = RunConfig.from_json(plan.config), Path(plan.tokenizer_dir)
    if plan.role == "keeper":
        held_out = draw_samples(config, tokenizer_dir)
        assert held_out is not None
        batches = [held_out]
    else:
        batches = draw_batches(config, tokenizer_dir, plan)
    _say({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        take_part(plan, json.loads(line), batches)


def draw_batches(config: RunConfig, tokenizer_dir: Path, plan: Plan) -> list[Batch]:
    """The trainer's text, read before any swarm is joined."""
    batches: list[Batch] = []
    with tempfile.TemporaryDirectory() as state_dir:
        size = config.data.microbatch_size
        with open_batches(config, tokenizer_dir, Path(state_dir), plan.device_number, size) as stream:
            for batch in stream:
                batches.append(batch)
                if len(batches) == plan.batches:
                    break
    return batches


def take_part(plan: Plan, task: dict[str, Any], batches: list[Batch]) -> None:
    """One run, from joining to leaving."""
    config = RunConfig.from_json(task["config"])
    tokenizer_dir = Path(plan.tokenizer_dir)
    model = build_model(config, load_tokenizer(tokenizer_dir).get_vocab_size(), load_special_ids(tokenizer_dir))
    rate = plan.line_mbit * BYTES_PER_S_OF_MBIT if plan.role == "trainer" else None
    traffic = Traffic(up=Throttle(rate), down=Throttle(rate))
    swarm = Swarm.join(
        config=config,
        model=model,
        credentials=Credentials(Path(plan.credentials_dir)),
        initial_peers=task["initial_peers"],
        place=Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",)),
        traffic=traffic,
    )
    if plan.role == "keeper":
        _say({"addresses": swarm.addresses})
        keep(swarm, task["steps"])
        evaluation = evaluate(model, batches[0])
        assert evaluation is not None
        _say({"loss": evaluation.mlm_loss + (evaluation.sop_loss or 0.0)})
    else:
        while not swarm.state.download():
            time.sleep(POLL_S)
        own = own_model(config, model)
        backend = with_local_steps(config, TorchBackend(config, own), own, model, swarm)
        _say({"joined": True})
        sys.stdin.readline()  # all are there
        sent_before, received_before, last = traffic.up.total_bytes, traffic.down.total_bytes, task["steps"]
        train(backend, RepeatedBatches(batches), swarm, lambda _: None, lambda: swarm.step >= last, time.monotonic)
        sent, received = traffic.up.total_bytes - sent_before, traffic.down.total_bytes - received_before
        _say({"sent_bytes": sent, "received_bytes": received})
    sys.stdin.readline()  # all are done, and nobody needs this one's state any more
    swarm.leave()
    _say({"left": True})


def keep(swarm: Swarm, steps: int) -> None:
    """Follow the swarm to the last step without training."""
    while swarm.step < steps:
        swarm.advance()
        time.sleep(POLL_S)


def _say(content: object) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
