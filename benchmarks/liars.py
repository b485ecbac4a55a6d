"""The final loss when some members send poisoned gradients: averaged as they are, screened, and with centred clipping.

    python benchmarks/liars.py [--quick] [--json]

Ten members' real gradients on the demo's text, of which none, one, two or three lie in each step, combined by the
product's own reducer (`peer.reduction.guard`) as a keeper without a gradient of its own would; no network in between.
The baseline is the same training without liars, averaged as it is. Losses are those of held-out text. The last figures
are the processor time of the reducer for all parts of a step, beside that of the plain mean of the same parts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hivemind.averaging.partition import TensorPartContainer

from benchmarks.compression import FULL, Changes, small_run
from benchmarks.reporting import Figure, argument_parser, report
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, open_batches
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.held_out import draw_samples, evaluate
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.guard import ReductionGuard

MEMBERS = 10
LIARS = (0, 1, 2, 3)
MICROBATCH = 8
PART_BYTES = 2**16
Poison = Callable[[torch.Tensor], torch.Tensor]
ATTACKS: dict[str, Poison] = {
    "sign-flipped": lambda gradient: -gradient,
    "sign-flipped, 5-fold": lambda gradient: -5 * gradient,
    "1000-fold": lambda gradient: 1000 * gradient,
}
WAYS = ("plain", "screened", "centred clipping")


@dataclass(frozen=True)
class Text:
    """What everybody trains and is judged on."""

    config: RunConfig
    tokenizer_dir: Path
    batches: list[Batch]
    held_out: Batch


@dataclass(frozen=True)
class Outcome:
    """What came of one training."""

    loss: float  # on held-out text
    combining_s: float  # in all steps


def main(arguments: Sequence[str] | None = None) -> None:
    """Train once for each attack, number of liars and way to average."""
    options = argument_parser("The final loss with lying members.").parse_args(arguments)
    steps, liars, attacks = (12, (0, 3), ("sign-flipped",)) if options.quick else (120, LIARS, tuple(ATTACKS))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(read_text(Path(directory), steps), steps, liars, attacks)
    report(f"{steps} steps of {MEMBERS} members, some of whom lie", figures, options.json)


def measure(text: Text, steps: int, liars: Sequence[int], attacks: Sequence[str]) -> list[Figure]:
    """Each training's final loss, beside that of plain averaging among honest members; then what combining took."""
    clean = {way: train(text, way, steps, 0, "") for way in WAYS}
    baseline = clean["plain"]
    figures = [Figure(f"{way}, nobody lies", clean[way].loss, "nats", baseline.loss, "plain") for way in WAYS]
    for attack in attacks:
        for number in filter(None, liars):
            figures += [
                Figure(
                    f"{way}, {100 * number // MEMBERS} % {attack}",
                    train(text, way, steps, number, attack).loss,
                    "nats",
                    baseline.loss,
                    "plain, nobody lies",
                )
                for way in WAYS
            ]
    return figures + [
        Figure(f"{way}: combining a step", clean[way].combining_s / steps, "s", baseline.combining_s / steps, "plain")
        for way in WAYS
    ]


def read_text(directory: Path, steps: int) -> Text:
    """As many batches as there are gradients, and the held-out samples."""
    changes: Changes = {
        "data": {"microbatch_size": MICROBATCH},
        "optimizer": {"learning_rate": 0.1},  # the demo's is for batches six times as large
        "schedule": {"warmup_steps": steps // 10, "total_steps": steps},
    }
    config = small_run(FULL, (changes,))
    tokenizer_dir = directory / "tokenizer"
    prepare_tokenizer(config, tokenizer_dir)
    held_out = draw_samples(config, tokenizer_dir)
    assert held_out is not None
    with open_batches(config, tokenizer_dir, directory, 0, MICROBATCH) as stream:
        batches = [batch for batch, _ in zip(stream, range(steps * MEMBERS), strict=False)]
    return Text(config, tokenizer_dir, batches, held_out)


def train(text: Text, way: str, steps: int, liars: int, attack: str) -> Outcome:
    """From the same first weights on the same text."""
    torch.manual_seed(0)
    vocabulary = load_tokenizer(text.tokenizer_dir).get_vocab_size()
    model = build_model(text.config, vocabulary, load_special_ids(text.tokenizer_dir))
    optimizer = build_optimizer(text.config, parameter_groups(model, text.config))
    scheduler = build_scheduler(text.config, optimizer)
    backend, combiner = TorchBackend(text.config, model), Combiner(way, text.config)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for step in range(steps):
        brought = []
        for member in range(MEMBERS):
            optimizer.zero_grad()
            samples = backend.accumulate(text.batches[step * MEMBERS + member]).samples
            backend.collect()
            own = [torch.zeros_like(p) if p.grad is None else p.grad / samples for p in parameters]
            brought.append([ATTACKS[attack](tensor) for tensor in own] if member < liars else own)
        for parameter, average in zip(parameters, combiner.average(brought), strict=True):
            parameter.grad = average
        optimizer.step()
        scheduler.step()
        backend.synchronize()
    judged = evaluate(model, text.held_out)
    assert judged is not None
    return Outcome(judged.mlm_loss + (judged.sop_loss or 0.0), combiner.seconds)


class Combiner:
    """One reducer of everything, in one of the ways."""

    def __init__(self, way: str, config: RunConfig) -> None:
        name = "centered_clipping" if way == "centred clipping" else "mean"
        averaging = config.averaging.model_copy(update={"aggregation": name})
        self._guard = None if way == "plain" else ReductionGuard(averaging=averaging)
        self.seconds = 0.0

    def average(self, brought: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """The tensors of all members, made one; nobody's weight is larger than another's."""
        senders = [f"member {number}" for number in range(len(brought))]
        containers = [TensorPartContainer(tensors, [1.0], part_size_bytes=PART_BYTES) for tensors in brought]
        parts = [[part for part, _ in container._input_parts_by_peer[0]] for container in containers]
        given = [
            [WeightedPart(sender, part, 1.0) for sender, part in enumerate(same)] for same in zip(*parts, strict=True)
        ]
        began = time.process_time()
        if self._guard is None:
            averages = [weighted_mean(number, part) for number, part in enumerate(given)]
        else:
            of_round = self._guard.begin(b"round", b"")
            keepers = [torch.zeros_like(tensor) for tensor in brought[0]]
            of_round.set_up(senders, keepers, list(containers[0]._input_parts_by_peer[0]), 0.0)
            averages = [of_round.combine(number, part) for number, part in enumerate(given)]
        self.seconds += time.process_time() - began
        joined = torch.split(torch.cat(averages), [tensor.numel() for tensor in brought[0]])
        tensors = [flat.view_as(tensor).clone() for flat, tensor in zip(joined, brought[0], strict=True)]
        if self._guard is not None:
            self._guard.accepted(b"", tensors)
        return tensors


if __name__ == "__main__":
    main()
