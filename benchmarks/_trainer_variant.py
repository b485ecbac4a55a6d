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
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model
from peer.models.objectives import compute_losses

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
    """Random words at the run's length, one document a sample, with as many labels as in training and no padding."""
    generator = torch.Generator().manual_seed(seed)
    length = config.data.sequence_length
    shape = (samples, length)
    input_ids = torch.randint(FIRST_WORD, vocabulary, shape, generator=generator)
    if config.objective.masks:
        input_ids[:, 0] = SPECIAL.cls
        chosen = torch.rand(shape, generator=generator) < config.objective.mask_probability
        chosen[:, 0] = False
        positions = chosen.flatten().nonzero().flatten()
        labels = torch.randint(FIRST_WORD, vocabulary, (len(positions),), generator=generator)
    else:
        positions = torch.arange(samples * length).view(shape)[:, :-1].flatten()
        labels = input_ids[:, 1:].flatten()
    several = ARCHITECTURES[config.model.architecture].token_types > 1
    in_order = config.objective.name == "mlm+sop"
    return Batch(
        input_ids=input_ids,
        token_type_ids=(torch.arange(length) >= length // 2).long().repeat(samples, 1) if several else None,
        attention_mask=None,
        label_positions=positions,
        labels=labels,
        sop_labels=torch.randint(0, 2, (samples,), generator=generator) if in_order else None,
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


def transformers_forward(config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """transformers' own forward, which takes labels for all positions, and finds the next tokens by itself."""

    def accumulate(batch: Batch) -> float:
        labels = batch.input_ids
        if config.objective.masks:
            labels = torch.full_like(batch.input_ids, -100)
            labels.view(-1)[batch.label_positions] = batch.labels
        more = {"token_type_ids": batch.token_type_ids, "sentence_order_label": batch.sop_labels}
        given = {name: value for name, value in more.items() if value is not None}
        loss = model(input_ids=batch.input_ids, labels=labels, **given).loss
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
    """Run the variant over its batches; the fastest counts, as the machine's other work can only add to the time.

    One thread is measured by its processor's time, which a busy machine lengthens less than the time on the clock.
    """
    torch.set_num_threads(plan.threads)
    clock = time.process_time if plan.threads == 1 else time.perf_counter
    config = RunConfig.from_json(plan.config_json)
    samples = config.data.microbatch_size
    model = build_model(config, plan.vocabulary, SPECIAL)
    accumulate = (VARIANTS | COMPILED)[plan.variant](config, model)
    losses, seconds, first_s = [], [], 0.0
    for seed in range(plan.microbatches):
        batch = random_batch(config, plan.vocabulary, samples, seed)
        torch.manual_seed(seed)  # the same dropout in each variant
        on_the_clock, began = time.perf_counter(), clock()
        losses.append(accumulate(batch))
        seconds.append(clock() - began)
        first_s = first_s or time.perf_counter() - on_the_clock  # compilers are processes of their own
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Outcome(samples / min(seconds), peak_kib / 1024, tuple(losses), first_s)


def main() -> None:
    """Read the plan, print the outcome, both as JSON."""
    print(json.dumps(asdict(measure(Plan(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
