"""What a fresh optimizer does at a phase's boundary, against keeping it: the loss curves of both.

    python benchmarks/phases.py [--quick] [--json] [--peers 3] [--out PICTURE]

A small ALBERT is trained on 64 tokens, then on 128. Each way is a whole run with its volunteers (`manyhands demo`),
and its curve is the ledger's; with `--quick` it is a few smaller steps in this process, from the same first weights.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from matplotlib import figure

from benchmarks._small_run import SMALL_RUN
from benchmarks.reporting import Figure, argument_parser, report
from coordinator.context.open_run import open_run
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import BatchStream, PhasedBatches, open_batches
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.optimizers import build_optimizer, parameter_groups, rate_in_phase

SEED = 1
PICTURE = Path(tempfile.gettempdir()) / "manyhands-phases.png"
LAST = 5  # steps whose mean loss is a phase's result


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    boundary: int  # steps of the first phase
    steps: int  # of both
    target_batch_size: int
    warmup_steps: int  # of the second phase


FULL = Scale(boundary=30, steps=60, target_batch_size=512, warmup_steps=4)
QUICK = Scale(boundary=16, steps=32, target_batch_size=64, warmup_steps=2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both ways, draw the curves, compare the losses right after the boundary and at the end."""
    parser = argument_parser("The loss after a phase's boundary, with a fresh and with a kept optimizer.")
    parser.add_argument("--peers", type=int, default=3, help="volunteers of each run")
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes")
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else FULL
    train = train_here if options.quick else partial(train_together, peers=options.peers)
    with tempfile.TemporaryDirectory() as directory:
        tokenizer_dir = Path(directory) / "tokenizer"
        prepare_tokenizer(phased_config("keep", scale), tokenizer_dir)  # once: training it twice may give two
        curves = {
            optimizer: train(phased_config(optimizer, scale, tokenizer_dir), scale.steps, Path(directory) / optimizer)
            for optimizer in ("fresh", "keep")
        }
    draw(curves, scale.boundary, options.out)
    where = "in this process" if options.quick else f"by {options.peers} volunteers"
    report(f"phases: 64, then 128 tokens, {where}; curves in {options.out}", figures(curves, scale), options.json)


def phased_config(optimizer: str, scale: Scale, tokenizer_dir: Path | None = None) -> RunConfig:
    """The small run in two phases; without a tokenizer it trains one of its own."""
    small: dict[str, Any] = yaml.safe_load(SMALL_RUN.read_text(encoding="utf-8"))
    small["data"] |= {"sequence_length": 64, "microbatch_size": 32}
    if tokenizer_dir is not None:
        small["tokenizer"] |= {"path": str(tokenizer_dir / "tokenizer.json")}
    small["averaging"] |= {"target_batch_size": scale.target_batch_size}
    phase = {"from_step": scale.boundary, "sequence_length": 128, "microbatch_size": 16, "optimizer": optimizer}
    return RunConfig.from_mapping(small | {"phases": [phase | {"warmup_steps": scale.warmup_steps}]})


def train_together(config: RunConfig, steps: int, directory: Path, peers: int) -> list[float]:
    """A whole run with so many volunteers; each step's loss."""
    directory.mkdir()
    run_file = directory / "run.yaml"
    run_file.write_text(config.to_yaml(), encoding="utf-8")
    demo = ["demo", "--config", str(run_file), "--dir", str(directory / "run"), "--steps", str(steps)]
    command = [sys.executable, "-m", "manyhands", *demo, "--peers", str(peers), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    with open_run(directory / "run") as run:
        return [row.loss for row in run.ledger.steps() if row.loss is not None][:steps]


def train_here(config: RunConfig, steps: int, directory: Path) -> list[float]:
    """The same training in this process, without a swarm; each step's mean loss."""
    prepare_tokenizer(config, directory)
    model = build_model(config, load_tokenizer(directory).get_vocab_size(), load_special_ids(directory))
    optimizer = build_optimizer(config, parameter_groups(model, config))
    torch.set_num_threads(1)  # on one core as on many, and always the same numbers
    backend = TorchBackend(config, model)
    losses: list[float] = []
    samples, loss_sum = 0, 0.0

    def enter(step: int) -> BatchStream:
        now = config.at_step(step)
        return open_batches(now, directory, directory / "state", SEED, now.data.microbatch_size)

    with PhasedBatches(config, lambda: len(losses), enter) as batches:
        for batch in batches:
            result = backend.accumulate(batch)
            samples, loss_sum = samples + result.samples, loss_sum + result.loss * result.samples
            if samples < config.at_step(len(losses)).averaging.target_batch_size:
                continue
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(samples)
            for group in optimizer.param_groups:
                group["lr"] = config.optimizer.learning_rate * rate_in_phase(len(losses), config)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss_sum / samples)
            samples, loss_sum = 0, 0.0
            if config.starts_optimizer(len(losses)):
                optimizer.reset_statistics()
            if len(losses) == steps:
                break
    return losses


def figures(curves: Mapping[str, Sequence[float]], scale: Scale) -> list[Figure]:
    """The losses that tell the ways apart, the kept optimizer's as the baseline."""
    fresh, keep = curves["fresh"], curves["keep"]
    boundary = scale.boundary

    def compare(name: str, of: slice, choose: Callable[[Sequence[float]], float]) -> Figure:
        return Figure(name, choose(fresh[of]), "loss", choose(keep[of]), "kept")

    return [
        compare(f"fresh: mean of the last {LAST} steps before the boundary", slice(boundary - LAST, boundary), mean),
        compare(f"fresh: highest of the {LAST} steps after it", slice(boundary, boundary + LAST), max),
        compare(f"fresh: mean of the last {LAST} steps", slice(-LAST, None), mean),
    ]


def mean(losses: Sequence[float]) -> float:
    """Their mean."""
    return sum(losses) / len(losses)


def draw(curves: Mapping[str, Sequence[float]], boundary: int, path: Path) -> None:
    """Both curves over global steps, with a line where the second phase begins, as PNG."""
    canvas = figure.Figure(figsize=(8, 4.5), layout="constrained")
    axes = canvas.add_subplot(xlabel="global step", ylabel="training loss", title="From 64 to 128 tokens")
    for optimizer, losses in curves.items():
        axes.plot(range(1, len(losses) + 1), losses, marker=".", label=f"optimizer: {optimizer}")
    axes.axvline(boundary + 0.5, color="grey", linestyle=":", linewidth=1)
    axes.annotate(
        "128 tokens",
        (boundary + 0.5, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -12),
        textcoords="offset points",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    canvas.savefig(path, format="png", dpi=120)


if __name__ == "__main__":
    main()
