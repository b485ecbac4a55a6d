"""The final loss when some members send poisoned gradients: averaged as they are, screened, and with centred clipping.

    python benchmarks/trust/liars.py [--quick] [--json]

Real gradients of four, six or ten members on the demo's text, of whom some lie in each step, combined by the product's
own reducer (`peer.reduction.guard`) as a keeper without a gradient of its own would; no network in between, and no cap
by the swarm's records. Liars send false gradients, or name false numbers of samples, or both. The baseline is the same
training without liars, averaged as it is. Losses are those of held-out text. *Credited* is the largest of the liars'
samples that count in a step, over those that they computed, in the mean of all steps. Honest members of very
different speeds follow, with the least that counts of one of them. The last figures are the processor time of the
reducer for all parts of a step, beside that of the plain mean of the same parts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from hivemind.averaging.partition import TensorPartContainer

from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.small_run import SMALL_RUN
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
MICROBATCH = 8
PART_BYTES = 2**16
WAYS = ("plain", "screened", "centred clipping")


@dataclass(frozen=True)
class Attack:
    """The lie of some members in each step."""

    scale: float = 1.0  # of their gradients
    claims: float = 1.0  # samples named for each one computed


ATTACKS: dict[str, Attack] = {
    "sign-flipped": Attack(-1),
    "sign-flipped, 5-fold": Attack(-5),
    "1000-fold": Attack(1000),
    "-1000-fold": Attack(-1000),
    "20 times claimed": Attack(claims=20),
    "20 times claimed, sign-flipped": Attack(-1, claims=20),
}
HONEST = Attack()


@dataclass(frozen=True)
class Case:
    """Some liars among some members."""

    attack: str
    liars: int
    members: int = MEMBERS

    def __str__(self) -> str:
        return f"{self.liars} of {self.members} {self.attack}"


OF_TEN = ("sign-flipped", "sign-flipped, 5-fold", "1000-fold")
OF_FEW = ("-1000-fold", "20 times claimed", "20 times claimed, sign-flipped")
CASES = (
    *(Case(attack, liars) for attack in OF_TEN for liars in (1, 2, 3)),
    *(Case(attack, *group) for attack in OF_FEW for group in ((1, 4), (1, 10), (2, 6))),
)
QUICK_CASES = (Case("sign-flipped", 3), Case("20 times claimed, sign-flipped", 1, 4))
SPEEDS = (1, 1, 1, 2, 2, 4, 16)  # microbatches of each honest member, where they differ


@dataclass(frozen=True)
class Text:
    """The task on which everybody trains and is judged."""

    config: RunConfig
    tokenizer_dir: Path
    batches: list[Batch]
    held_out: Batch


@dataclass(frozen=True)
class Outcome:
    """The result of one training."""

    loss: float  # on held-out text
    combining_s: float  # in all steps
    credited: float  # of the member that is counted most, over what it computed, in the mean of the steps
    least: float  # the same of the member that is counted least


def main(arguments: Sequence[str] | None = None) -> None:
    """Train once for each case and way to average."""
    parser = argument_parser("The final loss with lying members.")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name, and the baseline")
    options = parser.parse_args(arguments)
    steps, cases = (12, QUICK_CASES) if options.quick else (120, CASES)
    chosen = [case for case in cases if options.only in str(case)]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(read_text(Path(directory), steps), steps, chosen)
    report(f"{steps} steps of members, some of whom lie", figures, options.json)


def measure(text: Text, steps: int, cases: Sequence[Case]) -> list[Figure]:
    """Each training's final loss, beside that of plain averaging among honest members; then credits and time."""
    clean = {way: train(text, way, steps, [1] * MEMBERS) for way in WAYS}
    baselines = {MEMBERS: clean["plain"]}
    figures = [Figure(f"{way}, nobody lies", clean[way].loss, "nats", clean["plain"].loss, "plain") for way in WAYS]
    for case in cases:
        alike = [1] * case.members
        if case.members not in baselines:
            baselines[case.members] = train(text, "plain", steps, alike)
        baseline = baselines[case.members]
        for way in WAYS:
            found = train(text, way, steps, alike, case.liars, ATTACKS[case.attack])
            figures += [
                Figure(f"{way}, {case}", found.loss, "nats", baseline.loss, "plain, nobody lies"),
                Figure(f"{way}, {case}: credited", found.credited, "times"),
            ]
    unlike = {way: train(text, way, steps, SPEEDS) for way in WAYS}
    for way, found in unlike.items():
        figures += [
            Figure(f"{way}, honest speeds {SPEEDS}", found.loss, "nats", unlike["plain"].loss, "plain"),
            Figure(f"{way}, honest speeds {SPEEDS}: least credited", found.least, "times"),
        ]
    return figures + [
        Figure(
            f"{way}: combining a step", clean[way].combining_s / steps, "s", clean["plain"].combining_s / steps, "plain"
        )
        for way in WAYS
    ]


def small_run(steps: int) -> RunConfig:
    """The benchmarks' small run, made smaller yet."""
    run: dict[str, Any] = yaml.safe_load(SMALL_RUN.read_text(encoding="utf-8"))
    run["model"] |= {"num_hidden_layers": 2, "max_position_embeddings": 64}
    run["tokenizer"] |= {"vocab_size": 2000}
    run["data"] |= {"sequence_length": 64, "microbatch_size": MICROBATCH}
    run["optimizer"] |= {"learning_rate": 0.1}  # the small run's is for batches six times as large
    run["schedule"] |= {"warmup_steps": steps // 10, "total_steps": steps}
    return RunConfig.from_mapping(run)


def read_text(directory: Path, steps: int) -> Text:
    """As many batches as there are gradients, and the held-out samples."""
    config = small_run(steps)
    tokenizer_dir = directory / "tokenizer"
    prepare_tokenizer(config, tokenizer_dir)
    held_out = draw_samples(config, tokenizer_dir)
    assert held_out is not None
    with open_batches(config, tokenizer_dir, directory, 0, MICROBATCH) as stream:
        needed = steps * max(MEMBERS, sum(SPEEDS))
        batches = [batch for batch, _ in zip(stream, range(needed), strict=False)]
    return Text(config, tokenizer_dir, batches, held_out)


def train(text: Text, way: str, steps: int, speeds: Sequence[int], liars: int = 0, attack: Attack = HONEST) -> Outcome:
    """From the same first weights on the same text; the first members lie. `speeds`: microbatches of each member."""
    torch.manual_seed(0)
    vocabulary = load_tokenizer(text.tokenizer_dir).get_vocab_size()
    model = build_model(text.config, vocabulary, load_special_ids(text.tokenizer_dir))
    optimizer = build_optimizer(text.config, parameter_groups(model, text.config))
    scheduler = build_scheduler(text.config, optimizer)
    backend, combiner = TorchBackend(text.config, model), Combiner(way, text.config)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = iter(text.batches)
    for _ in range(steps):
        brought, computed, named = [], [], []
        for member, speed in enumerate(speeds):
            lie = attack if member < liars else HONEST
            optimizer.zero_grad()
            samples = sum(backend.accumulate(next(batches)).samples for _ in range(speed))
            backend.collect()
            own = [torch.zeros_like(p) if p.grad is None else p.grad / samples for p in parameters]
            brought.append([lie.scale * tensor for tensor in own])
            computed.append(float(samples))
            named.append(samples * lie.claims)
        for parameter, average in zip(parameters, combiner.average(brought, named, computed), strict=True):
            parameter.grad = average
        optimizer.step()
        scheduler.step()
        backend.synchronize()
    judged = evaluate(model, text.held_out)
    assert judged is not None
    credited = [credit / steps for credit in combiner.credits]
    return Outcome(
        judged.mlm_loss + (judged.sop_loss or 0.0),
        combiner.seconds,
        max(credited[: liars or None]),
        min(credited[liars:]),
    )


class Combiner:
    """One reducer of everything, in one of the ways."""

    def __init__(self, way: str, config: RunConfig) -> None:
        name = "centered_clipping" if way == "centred clipping" else "mean"
        averaging = config.averaging.model_copy(update={"aggregation": name})
        self._guard = None if way == "plain" else ReductionGuard(averaging=averaging)
        self.seconds = 0.0
        self.credits: list[float] = []  # of each member: what counted over what it computed, summed over the steps

    def average(
        self, brought: Sequence[Sequence[torch.Tensor]], named: Sequence[float], computed: Sequence[float]
    ) -> list[torch.Tensor]:
        """Return the tensors of all members, made one by the weights that they name."""
        senders = [f"member {number}" for number in range(len(brought))]
        containers = [TensorPartContainer(tensors, [1.0], part_size_bytes=PART_BYTES) for tensors in brought]
        parts = [[part for part, _ in container._input_parts_by_peer[0]] for container in containers]
        given = [
            [WeightedPart(sender, part, named[sender]) for sender, part in enumerate(same)]
            for same in zip(*parts, strict=True)
        ]
        counted = list(named)
        began = time.process_time()
        if self._guard is None:
            averages = [weighted_mean(number, part) for number, part in enumerate(given)]
        else:
            of_round = self._guard.begin(b"round", b"")
            keepers = [torch.zeros_like(tensor) for tensor in brought[0]]
            of_round.set_up(senders, keepers, list(containers[0]._input_parts_by_peer[0]), 0.0)
            averages = [of_round.combine(number, part).average for number, part in enumerate(given)]
            of_round.ended()
            counted = [of_round.credited(sender) for sender in range(len(senders))]
        self.seconds += time.process_time() - began
        before = self.credits or [0.0] * len(senders)
        self.credits = [sum(credit) for credit in zip(before, _ratios(counted, computed), strict=True)]
        joined = torch.split(torch.cat(averages), [tensor.numel() for tensor in brought[0]])
        tensors = [flat.view_as(tensor).clone() for flat, tensor in zip(joined, brought[0], strict=True)]
        if self._guard is not None:
            self._guard.accepted(b"", tensors)
        return tensors


def _ratios(counted: Sequence[float], computed: Sequence[float]) -> list[float]:
    return [most / true for most, true in zip(counted, computed, strict=True)]


if __name__ == "__main__":
    main()
