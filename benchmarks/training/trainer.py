"""Samples per second and peak memory of one worker, compared with transformers' forward pass in a plain PyTorch loop.

    python -m benchmarks.training.trainer [--quick] [--json] [--threads N] [--model NAME | --recipes] [--compile]
                                 [--device cuda] [--precision bf16] [--microbatch N]

All variants run forward and backward passes on the same batches with the same threads, each in a separate process.
The model "small" is the small run's, "base" is a 12-layer, 768-wide ALBERT with 32,000 tokens at length 512, and the
others are the recipes at their own length, one sample at a time. Memory includes the whole process with its libraries;
on a GPU it is PyTorch's memory on the device.

On a GPU all variants compute in the given precision, transformers' forward pass with `torch.autocast`. The share of the
GPU's speed compares a sample's floating-point operations (`peer.rehearsal.population.training_flops`) with the speed of
a large matrix product, measured in the same run.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.small_run import SMALL_RUN
from peer.backends.devices import choose_backend
from peer.backends.hardware import find_device
from peer.backends.passes import DTYPES, to_device
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.architectures import ARCHITECTURES
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model
from peer.rehearsal.population import training_flops
from peer.runtime.devices import Precision

BASE = {
    "model": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "tokenizer": {"vocab_size": 32_000},
    "data": {"sequence_length": 512, "microbatch_size": 4},
}
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5  # smaller ids are special tokens
SIDE = 8192  # side length of the square matrices whose product measures the GPU's speed
Accumulate = Callable[[Batch], float]  # adds a microbatch's gradient to `.grad`, returns its loss


@dataclass(frozen=True)
class Plan:
    """The configuration of one measurement of a variant."""

    variant: str  # name of a variant, a key of `VARIANTS`
    config: RunConfig
    microbatches: int
    threads: int
    device: str = "cpu"
    precision: Precision = "fp32"


@dataclass(frozen=True)
class Outcome:
    """Measured speed and memory of a variant."""

    samples_per_second: float
    peak_mib: float  # PyTorch's allocations on a GPU, else resident memory with interpreter and libraries
    losses: tuple[float, ...]
    first_s: float  # time of the first microbatch


def random_batch(config: RunConfig, seed: int) -> Batch:
    """Return unpadded random tokens of the run's length, one document per sample, with labels as in training."""
    generator = torch.Generator().manual_seed(seed)
    samples, length, vocabulary = config.data.microbatch_size, config.data.sequence_length, config.tokenizer.vocab_size
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


def worker(plan: Plan, model: PreTrainedModel, compiled: bool = False) -> Accumulate:
    """Return the worker's computation: the backend, including its checks for non-finite values.

    `compiled` is `--compile on`; the first microbatches include compilation, so they are never the fastest.
    """
    backend = choose_backend(find_device(plan.device), plan.precision, plan.config, model)(plan.threads)
    assert isinstance(backend, TorchBackend | ReplicaBackend)
    if compiled:
        backend.layers.switch_on(Path(tempfile.gettempdir()) / "manyhands-benchmark-compiled", warnings.warn)

    def accumulate(batch: Batch) -> float:
        result = backend.accumulate(backend.stage(batch))
        if not result.finite:
            raise ArithmeticError("the benchmark's model has blown up")
        if compiled and not backend.layers.on:
            raise RuntimeError("the layers could not be compiled")
        return result.loss

    return accumulate


def transformers_forward(plan: Plan, model: PreTrainedModel) -> Accumulate:
    """Return transformers' forward pass, which takes labels for all positions and shifts causal labels itself."""
    device = torch.device(plan.device)
    model.to(device)  # type: ignore[arg-type]  # transformers' decorator hides torch's signature
    autocast = torch.autocast(device.type, DTYPES[plan.precision], enabled=plan.precision != "fp32")

    def accumulate(batch: Batch) -> float:
        batch = to_device(batch, device)
        labels = batch.input_ids
        if plan.config.objective.masks:
            labels = torch.full_like(batch.input_ids, -100)
            labels.view(-1)[batch.label_positions] = batch.labels
        more = {"token_type_ids": batch.token_type_ids, "sentence_order_label": batch.sop_labels}
        given = {name: value for name, value in more.items() if value is not None}
        with autocast:
            loss = model(input_ids=batch.input_ids, labels=labels, **given).loss
        (loss * batch.samples).backward()
        return float(loss.detach())

    return accumulate


VARIANTS: dict[str, Callable[[Plan, PreTrainedModel], Accumulate]] = {
    "worker": worker,
    "worker, compiled": partial(worker, compiled=True),
    "transformers": transformers_forward,
}


def measure(plan: Plan) -> Outcome:
    """Run the variant on its batches and report the fastest batch: other processes can only add time.

    With one thread, processor time is measured, which a busy machine affects less than wall-clock time.
    """
    torch.set_num_threads(plan.threads)
    on_gpu = plan.device != "cpu"
    clock = time.process_time if plan.threads == 1 and not on_gpu else time.perf_counter
    model = build_model(plan.config, plan.config.tokenizer.vocab_size, SPECIAL)
    accumulate = VARIANTS[plan.variant](plan, model)
    losses, seconds, first_s = [], [], 0.0
    for seed in range(plan.microbatches):
        batch = random_batch(plan.config, seed)
        torch.manual_seed(seed)  # gives each variant the same dropout
        on_the_clock, began = time.perf_counter(), clock()
        losses.append(accumulate(batch))
        seconds.append(clock() - began)
        first_s = first_s or time.perf_counter() - on_the_clock  # wall-clock time, to include compilers' processes
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if on_gpu:
        peak_bytes = torch.cuda.max_memory_allocated()
    return Outcome(plan.config.data.microbatch_size / min(seconds), peak_bytes / 2**20, tuple(losses), first_s)


def products_per_second(precision: Precision) -> float:
    """Return the GPU's operations per second in a large matrix product, an upper bound for a model."""
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=DTYPES[precision]) for _ in range(2))
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.mm(left, right)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2.0 * SIDE**3 / min(seconds)


@dataclass(frozen=True)
class Model:
    """A model to train, and the number of its microbatches."""

    name: str
    config: RunConfig
    microbatches: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each variant of each model in its own process, and compare the variants."""
    options = _parse(arguments)
    figures, pace = [], 0.0
    if options.device != "cpu":
        pace = products_per_second(options.precision)
        figures.append(Figure(f"pace of the card in {options.precision}", pace / 1e12, "TFLOP/s"))
    for model in _models(options):
        best, theirs = _run(model, "worker", options), _run(model, "transformers", options)
        figures += _beside(model.name, "", best, theirs, "transformers")
        differences = [abs(a - b) / abs(b) for a, b in zip(best.losses, theirs.losses, strict=True)]
        figures.append(Figure(f"{model.name}: largest relative difference of losses", max(differences), ""))
        if options.compile:
            compiled = _run(model, "worker, compiled", options)
            figures += _beside(model.name, ", compiled", compiled, best, "worker")
            name = f"{model.name}: first microbatch, compiled"  # nearly all of this time is compilation
            figures.append(Figure(name, compiled.first_s, "s", best.first_s, "worker"))
            best = max(best, compiled, key=lambda outcome: outcome.samples_per_second)
        if pace:
            share = best.samples_per_second * training_flops(model.config) / pace
            figures.append(Figure(f"{model.name}: share of the card's pace", share, ""))
    report("trainer", figures, options.json)


def _models(options: argparse.Namespace) -> list[Model]:
    microbatch = {} if options.microbatch is None else {"microbatch_size": options.microbatch}
    if options.recipes or options.model in RECIPES:
        names = RECIPES if options.recipes else (options.model,)
        number = 2 if options.quick else 3 if options.device == "cpu" else 10
        return [_recipe(name, number, {"microbatch_size": 1} | microbatch) for name in names]
    base = {**BASE, "data": {**BASE["data"], **({"microbatch_size": 1} if options.quick else {}), **microbatch}}
    small = RunConfig.from_yaml(SMALL_RUN).model_dump(mode="json")
    models = [
        Model(
            "small", RunConfig.from_mapping(small | {"data": small["data"] | microbatch}), 15 if options.quick else 60
        ),
        Model("base", RunConfig.from_mapping(base), 3 if options.quick else 6),
    ]
    return [model for model in models if options.model in (None, model.name)]


def _recipe(name: str, microbatches: int, data: dict[str, int]) -> Model:
    """Return a recipe's model with this number of microbatches."""
    config = load_recipe(name)
    return Model(name, config.model_copy(update={"data": config.data.model_copy(update=data)}), microbatches)


def _run(model: Model, variant: str, options: argparse.Namespace) -> Outcome:
    """Measure a variant in a separate process, so that peak memory is measured for this variant only."""
    plan = Plan(variant, model.config, model.microbatches, options.threads, options.device, options.precision)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure, plan).result()


def _beside(model: str, which: str, ours: Outcome, theirs: Outcome, baseline: str) -> list[Figure]:
    speeds = (ours.samples_per_second, "samples/s", theirs.samples_per_second)
    peaks = (ours.peak_mib, "MiB", theirs.peak_mib)
    return [
        Figure(f"{model}: speed{which}", *speeds, baseline),
        Figure(f"{model}: peak memory{which}", *peaks, baseline),
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Samples per second and peak memory of one worker.")
    parser.add_argument("--threads", type=int, default=1, help="number of threads per variant (default: 1)")
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--model", choices=("small", "base", *RECIPES), help="measure only this model (default: small and base)"
    )
    models.add_argument("--recipes", action="store_true", help="measure the recipes instead of small and base")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to compute on (default: cpu)")
    parser.add_argument("--precision", choices=tuple(DTYPES), default="fp32", help="precision on a GPU (default: fp32)")
    parser.add_argument("--microbatch", type=int, metavar="N", help="samples per microbatch")
    parser.add_argument("--compile", action="store_true", help="also measure the worker with compiled layers")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
