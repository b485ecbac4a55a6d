"""Samples per second and peak memory of one worker, against plain PyTorch and transformers' own forward.

    python -m benchmarks.training.trainer [--quick] [--json] [--threads N] [--model NAME | --recipes] [--compile]
                                 [--device cuda] [--precision bf16] [--microbatch N]

Forward and backward passes over the same batches with the same threads; "small" is the small run's, "base" a 12-layer,
768-wide ALBERT with 32,000 words at length 512, and the others are the recipes, a sample at a time at their length.
Memory is the whole process's, its libraries included; on a GPU, PyTorch's on the card.

On a GPU all variants compute in the given precision. The share of the card's pace compares the operations that a sample
needs (`peer.rehearsal.population.training_flops`) with those of a large matrix product, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.small_run import SMALL_RUN
from benchmarks.training.trainer_variant import products_per_second
from peer.backends.passes import DTYPES
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import RunConfig
from peer.rehearsal.population import training_flops

ROOT = Path(__file__).resolve().parents[2]
BASE = {
    "model": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "tokenizer": {"vocab_size": 32_000},
    "data": {"sequence_length": 512, "microbatch_size": 4},
}


@dataclass(frozen=True)
class Model:
    """The model to train, and for how long."""

    name: str
    config: RunConfig
    microbatches: int
    variants: tuple[str, ...] = ("worker", "plain loop", "transformers")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each variant of each model in its own process and compare."""
    options = _parse(arguments)
    figures, pace = [], 0.0
    if options.device != "cpu":
        pace = products_per_second(options.precision)
        figures.append(Figure(f"pace of the card in {options.precision}", pace / 1e12, "TFLOP/s"))
    for model in _models(options):
        outcomes = {name: _run(model, name, options) for name in model.variants}
        figures += _figures(model.name, outcomes)
        best = outcomes["worker"]
        if options.compile:
            compiled = _run(model, "worker, compiled", options)
            figures += _compiled_figures(model.name, compiled, best)
            best = max(best, compiled, key=lambda outcome: float(outcome["samples_per_second"]))
        if pace:
            share = best["samples_per_second"] * training_flops(model.config) / pace
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
    """Return a recipe with these microbatches, and without the plain loop, which would take minutes more."""
    config = load_recipe(name)
    changed = config.model_copy(update={"data": config.data.model_copy(update=data)})
    return Model(name, changed, microbatches, variants=("worker", "transformers"))


def _run(model: Model, variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """The outcome of one variant, from a process that inherits nothing but the plan."""
    plan = {
        "variant": variant,
        "config_json": model.config.to_json(),
        "vocabulary": model.config.tokenizer.vocab_size,
        "microbatches": model.microbatches,
        "threads": options.threads,
        "device": options.device,
        "precision": options.precision,
    }
    command = [sys.executable, "-m", "benchmarks.training.trainer_variant", json.dumps(plan)]
    finished = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    outcome: dict[str, Any] = json.loads(finished.stdout)
    return outcome


def _figures(model: str, outcomes: dict[str, dict[str, Any]]) -> list[Figure]:
    ours = outcomes["worker"]
    figures = []
    for baseline, theirs in outcomes.items():
        if theirs is ours:
            continue
        speeds, peaks = ("samples_per_second", "samples/s"), ("peak_mib", "MiB")
        for what, (key, unit) in {"speed": speeds, "peak memory": peaks}.items():
            figures.append(Figure(f"{model}: {what}", ours[key], unit, theirs[key], baseline))
        differences = [abs(a - b) / abs(b) for a, b in zip(ours["losses"], theirs["losses"], strict=True)]
        figures.append(Figure(f"{model}: largest relative difference of losses to {baseline}", max(differences), ""))
    return figures


def _compiled_figures(model: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[Figure]:
    """Return what `--compile on` changes; the first microbatch's time is nearly all of it compiling."""
    key, unit = "samples_per_second", "samples/s"
    return [
        Figure(f"{model}: speed, compiled", ours[key], unit, theirs[key], "worker"),
        Figure(f"{model}: peak memory, compiled", ours["peak_mib"], "MiB", theirs["peak_mib"], "worker"),
        Figure(f"{model}: first microbatch, compiled", ours["first_s"], "s", theirs["first_s"], "worker"),
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Samples per second and peak memory of one worker.")
    parser.add_argument("--threads", type=int, default=1, help="threads of every variant (default: 1)")
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--model", choices=("small", "base", *RECIPES), help="only this model (default: small and base)"
    )
    models.add_argument("--recipes", action="store_true", help="the recipes instead of small and base")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    parser.add_argument("--precision", choices=tuple(DTYPES), default="fp32", help="on a GPU (default: fp32)")
    parser.add_argument("--microbatch", type=int, metavar="N", help="samples at a time")
    parser.add_argument("--compile", action="store_true", help="also the worker with compiled layers")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
