"""One way to compute gradients, measured alone: `python -m benchmarks._trainer_variant PLAN`, which trainer.py starts.

Each variant gets a process of its own, so that its peak memory is its own, and the same batches and threads.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model
from peer.models.objectives import compute_losses

MASKED_SHARE = 0.15
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5  # ids below are special
Accumulate = Callable[[Batch], float]  # adds a microbatch's gradient to `.grad`, returns its loss


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    variant: str  # a key of `VARIANTS` or `COMPILED`
    config_json: str
    vocabulary: int
    microbatches: int
    threads: int


@dataclass(frozen=True)
class Outcome:
    """What was measured."""

    samples_per_second: float
    peak_mib: float  # resident, the interpreter and its libraries included
    losses: tuple[float, ...]
    first_s: float  # for the first microbatch


def random_batch(config: RunConfig, vocabulary: int, samples: int, seed: int) -> Batch:
    """Random words at the run's length, masked as densely as in training, without padding as in training."""
    generator = torch.Generator().manual_seed(seed)
    length = config.data.sequence_length
    shape = (samples, length)
    chosen = torch.rand(shape, generator=generator) < MASKED_SHARE
    chosen[:, 0] = False
    positions = chosen.flatten().nonzero().flatten()
    return Batch(
        input_ids=torch.randint(FIRST_WORD, vocabulary, shape, generator=generator),
        token_type_ids=(torch.arange(length) >= length // 2).long().repeat(samples, 1),
        attention_mask=None,
        label_positions=positions,
        labels=torch.randint(FIRST_WORD, vocabulary, (len(positions),), generator=generator),
        sop_labels=torch.randint(0, 2, (samples,), generator=generator),
    )


def worker(config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """What a volunteer's worker does: the backend, with its guards against what is not finite."""
    backend = TorchBackend(config, model)

    def accumulate(batch: Batch) -> float:
        result = backend.accumulate(batch)
        if not result.finite:
            raise ArithmeticError("the benchmark's model has blown up")
        return result.loss

    return accumulate


def compiled_worker(config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """The worker with `--compile on`; the first microbatches compile, and are never the fastest."""
    backend = TorchBackend(config, model)
    backend.layers.switch_on(Path(tempfile.gettempdir()) / "manyhands-benchmark-compiled", warnings.warn)

    def accumulate(batch: Batch) -> float:
        result = backend.accumulate(batch)
        if not backend.layers.on:
            raise RuntimeError("the layers could not be compiled")
        return result.loss

    return accumulate


def plain_loop(config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """The same model in a loop without guards."""

    def accumulate(batch: Batch) -> float:
        loss = compute_losses(model, batch, config).total
        (loss * batch.samples).backward()  # type: ignore[no-untyped-call]
        return loss.item()

    return accumulate


def transformers_forward(_: RunConfig, model: PreTrainedModel) -> Accumulate:
    """transformers' own forward, which takes labels for all positions."""

    def accumulate(batch: Batch) -> float:
        labels = torch.full((batch.input_ids.numel(),), -100)
        labels[batch.label_positions] = batch.labels
        loss = model(
            input_ids=batch.input_ids,
            token_type_ids=batch.token_type_ids,
            labels=labels.view_as(batch.input_ids),
            sentence_order_label=batch.sop_labels,
        ).loss
        (loss * batch.samples).backward()
        return float(loss.detach())

    return accumulate


VARIANTS: dict[str, Callable[[RunConfig, PreTrainedModel], Accumulate]] = {
    "worker": worker,
    "plain loop": plain_loop,
    "transformers": transformers_forward,
}
COMPILED: dict[str, Callable[[RunConfig, PreTrainedModel], Accumulate]] = {"worker, compiled": compiled_worker}


def measure(plan: Plan) -> Outcome:
    """Run the variant over its batches; the fastest counts, as the machine's other work can only add to the time."""
    torch.set_num_threads(plan.threads)
    config = RunConfig.from_json(plan.config_json)
    samples = config.data.microbatch_size
    model = build_model(config, plan.vocabulary, SPECIAL)
    accumulate = (VARIANTS | COMPILED)[plan.variant](config, model)
    losses, seconds = [], []
    for seed in range(plan.microbatches):
        batch = random_batch(config, plan.vocabulary, samples, seed)
        began = time.perf_counter()
        losses.append(accumulate(batch))
        seconds.append(time.perf_counter() - began)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Outcome(samples / min(seconds), peak_kib / 1024, tuple(losses), seconds[0])


def main() -> None:
    """Read the plan, print the outcome, both as JSON."""
    print(json.dumps(asdict(measure(Plan(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
