"""Held-out losses of the ways to average, over seeds, with many virtual workers that take turns in one process.

    python -m benchmarks.virtual_workers [--text TEXT] [--workers N] [--seeds 0,1,2] [--samples N] [--only TEXT]
                                         [--quick] [--json]

Each way trains the same small ALBERT from the same first weights on the same batches. Workers differ in their shares of
the text, and send what real peers send: their numbers go through the product's own codes, factors and remainders, and a
reducer's answer through its code. There is no network, so nothing here says anything about time; `compression.py`
measures real peers. A ratio is that of a way's loss to the loss of exact averages with the same seed; its mean and
standard deviation over the seeds are shown. With common steps LAMB steps from the averaged gradient of each batch. With
local steps each worker takes `LOCAL_STEPS` of its own between averages, as DiLoCo does, without outer momentum.

A delayed round takes as long as the training until the next one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.reporting import Figure, argument_parser, report
from peer.averaging.error_feedback import ErrorFeedback
from peer.averaging.power_sgd import LowRank, orthonormal
from peer.backends.local_steps import LocalSteps, own_model
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.data.batching.batches import Batch, open_batches
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.held_out import draw_samples, evaluate
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.compression import HALF_BYTES, compression_of, decode, encode
from peer.reduction.sizes import RoundBytes, values_sent

MICROBATCH = 16
LOCAL_STEPS = 8  # of each worker between averages
SAMPLES, QUICK_SAMPLES = 40_960, 1024
MODEL = {
    "embedding_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
}
COMMON: Mapping[str, Any] = {"name": "lamb", "learning_rate": 0.05}
ADAMW: Mapping[str, Any] = {"name": "adamw", "learning_rate": 0.003}
MUON: Mapping[str, Any] = {"name": "muon", "learning_rate": 0.02}


@dataclass(frozen=True)
class Way:
    """One way to average."""

    optimizer: Mapping[str, Any]  # of common or of local steps
    averaging: Mapping[str, Any]
    is_local: bool = False


WAYS: Mapping[str, Way] = {
    "exact": Way(COMMON, {"compression": "none"}),
    "float16": Way(COMMON, {"compression": "float16"}),
    "8bit-blockwise": Way(COMMON, {"compression": "8bit-blockwise"}),
    "PowerSGD rank 4": Way(COMMON, {"compression": "float16", "powersgd_rank": 4}),
    "PowerSGD rank 8": Way(COMMON, {"compression": "float16", "powersgd_rank": 8}),
    "PowerSGD rank 16": Way(COMMON, {"compression": "float16", "powersgd_rank": 16}),
    "topk-2bit": Way(COMMON, {"compression": "topk-2bit"}),
    "exact, delayed": Way(COMMON, {"compression": "none", "delay": True}),
    "local, exact": Way(ADAMW, {"compression": "none"}, is_local=True),
    "local, float16": Way(ADAMW, {"compression": "float16"}, is_local=True),
    "local, 8bit-blockwise": Way(ADAMW, {"compression": "8bit-blockwise"}, is_local=True),
    "local, topk-2bit": Way(ADAMW, {"compression": "topk-2bit"}, is_local=True),
    "local, exact, delayed": Way(ADAMW, {"compression": "none", "delay": True}, is_local=True),
    "local, topk-2bit, delayed": Way(ADAMW, {"compression": "topk-2bit", "delay": True}, is_local=True),
    "local, Muon, float16": Way(MUON, {"compression": "float16"}, is_local=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in each way with each seed, and compare with exact averages."""
    options = _options(arguments)
    names = [name for name in WAYS if name in ("exact", "local, exact") or options.only in name]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        study = Study(Path(scratch), options.text, options.workers, options.samples)
        losses = {name: [study.loss(WAYS[name], seed) for seed in options.seeds] for name in names}
        figures = _figures(losses, study)
    report(f"{options.workers} virtual workers, {options.samples:,} samples", figures, options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Held-out losses of the ways to average, over seeds.")
    parser.add_argument("--text", type=Path, help="documents as JSON Lines (default: the demo's corpus)")
    parser.add_argument("--workers", type=int, default=4, help="(default: 4)")
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2], help="(default: 0,1,2)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"of all workers (default: {SAMPLES})")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways with this in their name, and exact averages")
    options = parser.parse_args(arguments)
    if options.quick:
        options.samples, options.seeds = QUICK_SAMPLES, options.seeds[:2]
    return options


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


@dataclass(frozen=True)
class Study:
    """The common settings of all ways."""

    folder: Path
    text: Path | None
    workers: int
    samples: int
    _drawn: dict[tuple[int, int], list[Batch]] = field(default_factory=dict)  # by seed and worker
    _held_out: list[Batch] = field(default_factory=list)  # one, once it is drawn

    def config(self, way: Way, seed: int) -> RunConfig:
        """Return the run of a way: a batch is one microbatch of each worker, times the local steps."""
        raw = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml").model_dump(mode="json")
        batch = MICROBATCH * self.workers * (LOCAL_STEPS if way.is_local else 1)
        raw["run"]["seed"] = seed
        raw["model"] |= MODEL
        raw["data"] |= {"sequence_length": 64, "microbatch_size": MICROBATCH}
        raw["data"]["validation"] = {"share": 0.05, "samples": 256}
        if self.text is not None:
            raw["data"]["sources"] = [{"kind": "jsonl", "path": str(self.text.absolute())}]
        raw["optimizer"] = dict(way.optimizer)
        steps = max(2, self.samples // batch)
        raw["schedule"] = {"warmup_steps": max(1, steps // 20), "total_steps": steps}
        raw["averaging"] |= {"target_batch_size": batch, **way.averaging}
        if way.is_local:
            local = {"local_steps": self.workers * LOCAL_STEPS, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
            raw["averaging"] |= local
        return RunConfig.from_mapping(raw)

    def loss(self, way: Way, seed: int) -> float:
        """Train, and return the held-out loss."""
        config, tokenizer = self.config(way, seed), self._tokenizer()
        torch.manual_seed(seed)
        model = build_model(config, load_tokenizer(tokenizer).get_vocab_size(), load_special_ids(tokenizer))
        swarm = VirtualSwarm(config, model, [iter(self._batches(config, worker)) for worker in range(self.workers)])
        swarm.train(config.schedule.total_steps, delay=config.averaging.delay)
        found = evaluate(model, self._validation(config))
        assert found is not None
        return found.mlm_loss + (found.sop_loss or 0.0)

    def bytes_a_parameter(self, way: Way) -> tuple[float, float]:
        """Return the bytes for each parameter that a worker sends to average once, and that come back."""
        config, tokenizer = self.config(way, 0), self._tokenizer()
        model = build_model(config, load_tokenizer(tokenizer).get_vocab_size(), load_special_ids(tokenizer))
        shapes = [parameter.shape for parameter in model.parameters() if parameter.requires_grad]
        sent = values_sent(shapes, config.averaging.powersgd_rank) / sum(shape.numel() for shape in shapes)
        size = RoundBytes.of(config.averaging.wire_format)
        return sent * size.sent, sent * size.averages

    def _tokenizer(self) -> Path:
        folder = self.folder / "tokenizer"
        if not folder.exists():
            folder.mkdir()
            prepare_tokenizer(self.config(WAYS["exact"], 0), folder)
        return folder

    def _batches(self, config: RunConfig, worker: int) -> list[Batch]:
        """Return a worker's microbatches, the same for all ways; drawn once for each seed."""
        key = config.run.seed, worker
        if key not in self._drawn:
            with (
                tempfile.TemporaryDirectory() as scratch,
                open_batches(config, self._tokenizer(), Path(scratch), 1 + worker, MICROBATCH) as stream,
            ):
                number = self.samples // (MICROBATCH * self.workers) + LOCAL_STEPS
                self._drawn[key] = list(islice(stream, number))
        return self._drawn[key]

    def _validation(self, config: RunConfig) -> Batch:
        if not self._held_out:
            drawn = draw_samples(config, self._tokenizer())
            assert drawn is not None, "the run holds text out"
            self._held_out.append(drawn)
        return self._held_out[0]


class Wire(Protocol):
    """Averages what the workers have: lists of tensors, one for each parameter."""

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the average that all workers get of sums over so many samples."""
        ...


class Coded:
    """Each tensor in one code, both ways."""

    def __init__(self, code: int) -> None:
        self._code = code

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the average of decoded means, decoded."""
        means = [[total / number for total in own] for own, number in zip(sums, samples, strict=True)]
        return mean_of(means, samples, self._code, self._code)


class Sparse:
    """Sparse gradients with a remainder for each worker, and averages in half bytes."""

    def __init__(self, workers: int) -> None:
        self._feedbacks = [ErrorFeedback() for _ in range(workers)]

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the average of what is sent, and keep what is not."""
        means = [[total / number for total in own] for own, number in zip(sums, samples, strict=True)]
        for feedback, own, number in zip(self._feedbacks, means, samples, strict=True):
            feedback.load(own, number)
        exact = int(compression_of("none").compression_type)
        averages = mean_of(means, samples, exact, HALF_BYTES.compression_type)
        for feedback, own, total in zip(self._feedbacks, means, sums, strict=True):
            feedback.settle(own, total, averaged=True)
        return averages


class LowRanks:
    """Matrices as factors with a remainder for each worker; all values in one code."""

    def __init__(self, workers: int, shapes: Sequence[torch.Size], rank: int, code: int) -> None:
        self._peers, self._code = [LowRank(shapes, rank) for _ in range(workers)], code

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Average images, then coordinates; return the product of the factors."""
        means = [[total / number for total in own] for own, number in zip(sums, samples, strict=True)]
        for peer, own, number in zip(self._peers, means, samples, strict=True):
            peer.load(own, number)
        images = [peer.images(own) for peer, own in zip(self._peers, means, strict=True)]
        lefts = [orthonormal(image) for image in mean_of(images, samples, self._code, self._code)]
        coordinates = [peer.coordinates(own, lefts) for peer, own in zip(self._peers, means, strict=True)]
        averages = mean_of(coordinates, samples, self._code, self._code)
        for peer, own, total in zip(self._peers, means, sums, strict=True):
            peer.take(own, lefts, averages)
            peer.settle(own, total, averaged=True)
        return means[0]


def mean_of(of_workers: Sequence[Sequence[Tensor]], samples: Sequence[int], sent: int, returned: int) -> list[Tensor]:
    """Return the mean by samples of tensors that went through the code `sent`, itself through the code `returned`."""
    averages = []
    for same in zip(*of_workers, strict=True):
        parts = [
            WeightedPart(index, decode_any(tensor, sent), float(number))
            for index, (tensor, number) in enumerate(zip(same, samples, strict=True))
        ]
        averages.append(decode_any(weighted_mean(0, parts), returned).view_as(same[0]))
    return averages


def decode_any(tensor: Tensor, code: int) -> Tensor:
    """Return what the receiver of a tensor has."""
    return decode(encode(tensor, code), HALF_BYTES)


def wire_of(config: RunConfig, workers: int, shapes: Sequence[torch.Size]) -> Wire:
    """Return what averages in this run."""
    averaging = config.averaging
    if averaging.compression == "topk-2bit":
        return Sparse(workers)
    code = int(compression_of(averaging.wire_format).compression_type)
    return LowRanks(workers, shapes, averaging.powersgd_rank, code) if averaging.powersgd_rank else Coded(code)


class VirtualWorker(Protocol):
    """One worker, beside others with the same common model: it stands for the copies that are equal on all peers."""

    def train(self, batches: Iterable[Batch]) -> None:
        """Compute microbatches."""
        ...

    def sums(self) -> tuple[list[Tensor], int]:
        """Return what is to be averaged, as sums, and over how many samples; the worker trains on beside it."""
        ...

    def stepped(self) -> None:
        """Take in that the common model has taken the step of the sums that were last returned."""
        ...


class CommonSteps:
    """A worker that computes gradients of the common parameters."""

    def __init__(self, config: RunConfig, model: PreTrainedModel, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._backend, self._parameters = TorchBackend(config, model), parameters
        self._samples = 0
        self._sums: list[Tensor] = []

    def train(self, batches: Iterable[Batch]) -> None:
        """Compute microbatches, and take the gradients out of the parameters, where other workers' come."""
        self._samples = sum(self._backend.accumulate(batch).samples for batch in batches)
        self._sums = take_gradients(self._parameters)

    def sums(self) -> tuple[list[Tensor], int]:
        """Return the sums of gradients over the last samples."""
        return self._sums, self._samples

    def stepped(self) -> None:
        """Do nothing: the gradients to come are those of the new parameters."""


@dataclass
class Standing:
    """The part of a swarm that one worker's local steps see (`peer.backends.local_steps.OuterSteps`)."""

    optimizer: torch.optim.Optimizer
    step: int = 0
    own_samples: int = 0
    set_aside_samples: int = 0


class OwnSteps:
    """A worker that takes local steps with a copy of the model."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._parameters, self._standing, own = parameters, Standing(optimizer), own_model(config, model)
        self._is_delayed = config.averaging.delay
        self._backend = LocalSteps(config, TorchBackend(config, own), own, model, self._standing)

    def train(self, batches: Iterable[Batch]) -> None:
        """Take a local step on each microbatch."""
        for batch in batches:
            self._standing.own_samples += self._backend.accumulate(batch).samples

    def sums(self) -> tuple[list[Tensor], int]:
        """Return the pseudo-gradient times the samples; with delay these are set aside for the round."""
        self._backend.collect()
        samples = self._standing.own_samples
        self._standing.set_aside_samples = samples if self._is_delayed else 0
        return take_gradients(self._parameters), samples

    def stepped(self) -> None:
        """Go on from the common parameters, with the progress since the round began."""
        standing = self._standing
        standing.own_samples -= standing.set_aside_samples or standing.own_samples
        standing.set_aside_samples = 0
        standing.step += 1
        self._backend.synchronize()


def take_gradients(parameters: Iterable[torch.nn.Parameter]) -> list[Tensor]:
    """Return the gradients, and leave none."""
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    for each in parameters:
        each.grad = None
    return gradients


class VirtualSwarm:
    """The common model, its optimizer, and the workers."""

    def __init__(self, config: RunConfig, model: PreTrainedModel, batches: Sequence[Iterator[Batch]]) -> None:
        self._batches = batches
        self._microbatches = config.averaging.target_batch_size // (MICROBATCH * len(batches))  # of a worker
        groups = parameter_groups(model, config)
        self._parameters: list[torch.nn.Parameter] = [each for group in groups for each in group["params"]]
        self._optimizer = build_optimizer(config, groups)
        self._scheduler = build_scheduler(config, self._optimizer)
        self._wire = wire_of(config, len(batches), [each.shape for each in self._parameters])
        self._workers: list[VirtualWorker] = [
            OwnSteps(config, model, self._parameters, self._optimizer)
            if config.averaging.local_steps > 1
            else CommonSteps(config, model, self._parameters)
            for _ in batches
        ]

    def train(self, rounds: int, *, delay: bool) -> None:
        """Average so often; with delay the step of a round is taken when the training for the next one has ended."""
        late: list[Tensor] | None = None
        for _ in range(rounds):
            for worker, batches in zip(self._workers, self._batches, strict=True):
                worker.train(islice(batches, self._microbatches))
            if late is not None:
                self._step(late)
            sums, samples = zip(*(worker.sums() for worker in self._workers), strict=True)
            late = self._wire.average(sums, samples)
            if not delay:
                self._step(late)
                late = None
        if late is not None:
            self._step(late)

    def _step(self, average: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, average, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._scheduler.step()
        take_gradients(self._parameters)
        for worker in self._workers:
            worker.stepped()


def _figures(losses: Mapping[str, Sequence[float]], study: Study) -> list[Figure]:
    """Return each way's bytes, and its loss beside that of exact averages, as means over the seeds."""
    rows = []
    for name, own in losses.items():
        baseline = "local, exact" if WAYS[name].is_local else "exact"
        ratios = [mine / exact for mine, exact in zip(own, losses[baseline], strict=True)]
        sent, returned = study.bytes_a_parameter(WAYS[name])
        rows.append(Figure(f"{name}: held-out loss", fmean(own), "", fmean(losses[baseline]), baseline))
        rows.append(Figure(f"{name}: standard deviation of the ratio", stdev(ratios) if len(own) > 1 else 0.0, ""))
        rows.append(Figure(f"{name}: sent", sent, "bytes a parameter"))
        rows.append(Figure(f"{name}: received", returned, "bytes a parameter"))
    return rows


if __name__ == "__main__":
    main()
