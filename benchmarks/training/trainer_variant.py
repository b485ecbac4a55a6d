"""One way to compute gradients, measured alone: trainer.py starts `python -m benchmarks.training.trainer_variant PLAN`.

Each variant gets a process of its own, so that its peak memory is its own, and the same batches and threads. On a GPU
all variants compute in the same precision, transformers' own forward by `torch.autocast`.
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

from peer.backends.choice import choose_backend
from peer.backends.hardware import find_device
from peer.backends.passes import DTYPES, to_device
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model
from peer.models.objectives import compute_losses
from peer.runtime.devices import Precision

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5  # ids below are special
SIDE = 8192  # of the square matrices whose product is the card's pace
Accumulate = Callable[[Batch], float]  # adds a microbatch's gradient to `.grad`, returns its loss


@dataclass(frozen=True)
class Plan:
    """The work to be measured."""

    variant: str  # a key of `VARIANTS` or `COMPILED`
    config_json: str
    vocabulary: int
    microbatches: int
    threads: int
    device: str = "cpu"
    precision: Precision = "fp32"


@dataclass(frozen=True)
class Outcome:
    """The measurements of one variant."""

    samples_per_second: float
    peak_mib: float  # of a GPU what PyTorch had allocated; else resident, the interpreter and its libraries included
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


def worker(plan: Plan, config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """Compute as a volunteer's worker does: by the backend, with its guards against what is not finite."""
    backend = choose_backend(find_device(plan.device), plan.precision, config, model)(plan.threads)

    def accumulate(batch: Batch) -> float:
        result = backend.accumulate(backend.stage(batch))
        if not result.finite:
            raise ArithmeticError("the benchmark's model has blown up")
        return result.loss

    return accumulate


def compiled_worker(plan: Plan, config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """The worker with `--compile on`; the first microbatches compile, and are never the fastest."""
    backend = choose_backend(find_device(plan.device), plan.precision, config, model)(plan.threads)
    assert isinstance(backend, TorchBackend | ReplicaBackend)
    layers = backend.layers
    layers.switch_on(Path(tempfile.gettempdir()) / "manyhands-benchmark-compiled", warnings.warn)

    def accumulate(batch: Batch) -> float:
        result = backend.accumulate(backend.stage(batch))
        if not layers.on:
            raise RuntimeError("the layers could not be compiled")
        return result.loss

    return accumulate


def plain_loop(plan: Plan, config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """The same model in a loop without guards."""
    device = torch.device(plan.device)
    model.to(device)  # type: ignore[arg-type]  # transformers' decorator hides torch's signature

    def accumulate(batch: Batch) -> float:
        with _autocast(plan):
            loss = compute_losses(model, to_device(batch, device), config).total
        (loss * batch.samples).backward()  # type: ignore[no-untyped-call]
        return loss.item()

    return accumulate


def transformers_forward(plan: Plan, config: RunConfig, model: PreTrainedModel) -> Accumulate:
    """transformers' own forward, which takes labels for all positions, and finds the next tokens by itself."""
    device = torch.device(plan.device)
    model.to(device)  # type: ignore[arg-type]

    def accumulate(batch: Batch) -> float:
        batch = to_device(batch, device)
        labels = batch.input_ids
        if config.objective.masks:
            labels = torch.full_like(batch.input_ids, -100)
            labels.view(-1)[batch.label_positions] = batch.labels
        more = {"token_type_ids": batch.token_type_ids, "sentence_order_label": batch.sop_labels}
        given = {name: value for name, value in more.items() if value is not None}
        with _autocast(plan):
            loss = model(input_ids=batch.input_ids, labels=labels, **given).loss
        (loss * batch.samples).backward()
        return float(loss.detach())

    return accumulate


def _autocast(plan: Plan) -> torch.autocast:
    kind = torch.device(plan.device).type
    return torch.autocast(kind, DTYPES[plan.precision], enabled=plan.precision != "fp32")


VARIANTS: dict[str, Callable[[Plan, RunConfig, PreTrainedModel], Accumulate]] = {
    "worker": worker,
    "plain loop": plain_loop,
    "transformers": transformers_forward,
}
COMPILED: dict[str, Callable[[Plan, RunConfig, PreTrainedModel], Accumulate]] = {"worker, compiled": compiled_worker}


def measure(plan: Plan) -> Outcome:
    """Run the variant over its batches; the fastest counts, as the machine's other work can only add to the time.

    One thread is measured by its processor's time, which a busy machine lengthens less than the time on the clock.
    """
    torch.set_num_threads(plan.threads)
    on_gpu = plan.device != "cpu"
    clock = time.process_time if plan.threads == 1 and not on_gpu else time.perf_counter
    config = RunConfig.from_json(plan.config_json)
    samples = config.data.microbatch_size
    model = build_model(config, plan.vocabulary, SPECIAL)
    accumulate = (VARIANTS | COMPILED)[plan.variant](plan, config, model)
    losses, seconds, first_s = [], [], 0.0
    for seed in range(plan.microbatches):
        batch = random_batch(config, plan.vocabulary, samples, seed)
        torch.manual_seed(seed)  # the same dropout in each variant
        on_the_clock, began = time.perf_counter(), clock()
        losses.append(accumulate(batch))
        seconds.append(clock() - began)
        first_s = first_s or time.perf_counter() - on_the_clock  # compilers are processes of their own
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if on_gpu:
        peak_bytes = torch.cuda.max_memory_allocated()
    return Outcome(samples / min(seconds), peak_bytes / 2**20, tuple(losses), first_s)


def products_per_second(precision: Precision) -> float:
    """Return the GPU's operations a second in the product of two large random matrices: what a model could reach."""
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=DTYPES[precision]) for _ in range(2))
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.mm(left, right)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2.0 * SIDE**3 / min(seconds)


def main() -> None:
    """Read the plan, print the outcome, both as JSON."""
    print(json.dumps(asdict(measure(Plan(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
