"""Held-out losses of the ways to average, over seeds, with many virtual workers that take turns in one process.

    python -m benchmarks.training.virtual_workers [--out DIR] [--text TEXT] [--workers 4,8,16,32] [--seeds 0,1,2]
                                                  [--samples N] [--only TEXT] [--quick] [--json]

Each way trains the same small ALBERT from the same first weights on the same batches, however many workers share them:
a batch has `BATCH` samples, as many from each of `SHARES` shares of the text, and each worker has some shares. Workers
send what real peers send: their numbers go through the product's own codes, factors and remainders, and a reducer's
answer through its code. There is no network, so nothing here says anything about time; `compression.py` measures real
peers. With common steps LAMB steps from the averaged gradient of each batch. With local steps each worker takes
`LOCAL_STEPS` of its own between averages, with AdamW (DiLoCo, and SparseLoCo with `topk-2bit`) or with Muon (MuLoCo).
1-bit LAMB is a trial of `one_bit_lamb.py`.

A ratio is that of a way's loss to the loss of exact averages with the same optimizer and seed, and with local steps as
many workers; its mean and standard deviation over the seeds are shown. Bytes are those of the encoded tensors, without
the messages around them. Codec time is the process's, for each parameter of a peer and round: that of the peer's own
values on their way, and of the averages on theirs. The model's tensors are small, so most of it is that of calls.

Runs that have ended in DIR are not trained anew, so a stopped benchmark goes on; once the tokenizer is there, two may
train different seeds at once. DIR gets runs.parquet and runs.json with all runs in it, and virtual-workers.png. A
folder with another text or number of samples is refused. `--quick` trains `QUICK_WAYS` with one seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow
import torch
from pyarrow import parquet

from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.small_run import SMALL_RUN
from benchmarks.training.virtual_results import Run, bands_of, draw
from benchmarks.training.virtual_swarm import VirtualSwarm
from benchmarks.training.virtual_ways import BATCH, LOCAL_STEPS, SHARES, WAYS, Way
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, open_batches
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.held_out import draw_samples, evaluate

SAMPLES, QUICK_SAMPLES = 40_960, 1024
QUICK_WAYS = (
    "exact",
    "PowerSGD rank 8",
    "1-bit LAMB, exact",
    "1-bit LAMB",
    "AdamW, exact",
    "AdamW, topk-2bit, delayed",
)
ROUND_SAMPLES = BATCH * LOCAL_STEPS  # of a round of local steps
MODEL = {
    "embedding_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing in each way, and compare all runs of the folder with exact averages."""
    options = _options(arguments)
    chosen = [name for name in (QUICK_WAYS if options.quick else WAYS) if options.only in name]
    beside = {WAYS[name].baseline for name in chosen}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        study = Study(options.out or Path(scratch), options.text, options.samples)
        study.prepare()
        for seed in options.seeds:
            for workers in options.workers:
                for name in [name for name in WAYS if name in chosen or name in beside]:
                    study.run(name, workers, seed)
        runs = study.runs()
        parquet.write_table(pyarrow.Table.from_pylist([asdict(run) for run in runs]), study.folder / "runs.parquet")
        (study.folder / "runs.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))
        draw(bands_of(runs), study.folder / "virtual-workers.png")
    report(f"virtual workers, {options.samples:,} samples a run", figures_of(runs), options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Held-out losses of the ways to average, over seeds.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that keeps runs (default: a temporary one)")
    parser.add_argument("--text", type=Path, help="documents as JSON Lines (default: the demo's corpus)")
    parser.add_argument("--workers", type=_workers, default=[4], help=f"divisors of {SHARES} (default: 4)")
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2], help="(default: 0,1,2)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"of each run (default: {SAMPLES})")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways with this in their name, and exact averages")
    options = parser.parse_args(arguments)
    if options.quick:
        options.samples, options.seeds = QUICK_SAMPLES, options.seeds[:1]
    if options.samples < 2 * ROUND_SAMPLES or options.samples % ROUND_SAMPLES:
        parser.error(
            f"--samples ({options.samples}) must be a multiple of {ROUND_SAMPLES}, at least {2 * ROUND_SAMPLES}"
        )
    return options


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _workers(text: str) -> list[int]:
    numbers = _numbers(text)
    if wrong := [number for number in numbers if number < 1 or SHARES % number]:
        raise argparse.ArgumentTypeError(f"{wrong[0]} does not divide {SHARES}, the number of shares of a batch")
    return numbers


@dataclass(frozen=True)
class Study:
    """The folder of all runs, and their common settings."""

    folder: Path
    text: Path | None  # None: the demo's corpus
    samples: int
    _drawn: dict[tuple[int, int], list[Batch]] = field(default_factory=dict)  # by seed and share
    _held_out: list[Batch] = field(default_factory=list)  # one, once it is drawn

    def config(self, way: Way, workers: int, seed: int) -> RunConfig:
        """Return the run of a way."""
        raw = RunConfig.from_yaml(SMALL_RUN).model_dump(mode="json")
        batch = ROUND_SAMPLES if way.is_local else BATCH
        raw["run"]["seed"] = seed
        raw["model"] |= MODEL
        raw["data"] |= {"sequence_length": 64, "microbatch_size": BATCH // workers}
        raw["data"]["validation"] = {"share": 0.05, "samples": 256}
        if self.text is not None:
            raw["data"]["sources"] = [{"kind": "jsonl", "path": str(self.text.absolute())}]
        raw["optimizer"] = dict(way.optimizer)
        steps = self.samples // batch
        raw["schedule"] = {"warmup_steps": max(1, steps // 20), "total_steps": steps}
        raw["averaging"] |= {"target_batch_size": batch, **way.averaging}
        if way.is_local:
            raw["averaging"]["local_steps"] = workers * LOCAL_STEPS
        return RunConfig.from_mapping(raw)

    def prepare(self) -> None:
        """Train the tokenizer, unless it is there. Exits where the folder is of another study."""
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        kept = self.folder / "study.json"
        own = {"run": self.config(WAYS["exact"], 1, 0).to_yaml(), "samples": self.samples}
        if not kept.exists():
            _write(kept, own)
        if json.loads(kept.read_text()) != own:
            sys.exit(f"{self.folder} holds runs with another model, text or number of samples: name another folder.")
        if not self._tokenizer.exists():
            made = Path(tempfile.mkdtemp(dir=self.folder))
            prepare_tokenizer(self.config(WAYS["exact"], 1, 0), made)
            made.rename(self._tokenizer)

    def run(self, name: str, workers: int, seed: int) -> Run:
        """Return a run of a way; train it first if it has not ended in the folder."""
        kept = self.path(name, workers, seed)
        if not kept.exists():
            _write(kept, asdict(self._trained(name, workers, seed)))
        return Run(**json.loads(kept.read_text()))

    def path(self, name: str, workers: int, seed: int) -> Path:
        """Return the file of a run that has ended."""
        return self.folder / "runs" / f"{name.replace(', ', '-').replace(' ', '-')}-{workers}-{seed}.json"

    def runs(self) -> list[Run]:
        """Return all runs of the folder, in the order of the ways."""
        found = [Run(**json.loads(path.read_text())) for path in (self.folder / "runs").glob("*.json")]
        places = {name: place for place, name in enumerate(WAYS)}
        return sorted(found, key=lambda run: (places[run.way], run.workers, run.seed))

    def _trained(self, name: str, workers: int, seed: int) -> Run:
        way = WAYS[name]
        config = self.config(way, workers, seed)
        torch.manual_seed(seed)
        special, size = load_special_ids(self._tokenizer), load_tokenizer(self._tokenizer).get_vocab_size()
        model = build_model(config, size, special)
        streams = [self._stream(config, range(worker, SHARES, workers)) for worker in range(workers)]
        swarm = VirtualSwarm(config, model, streams, is_one_bit=way.is_one_bit)
        rounds = config.schedule.total_steps
        swarm.train(rounds, delay=config.averaging.delay)
        found, cost = evaluate(model, self._validation(config)), swarm.wire.cost
        assert found is not None
        values = rounds * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        return Run(
            way=name,
            workers=workers,
            seed=seed,
            samples=self.samples,
            rounds=rounds,
            loss=found.mlm_loss + (found.sop_loss or 0.0),
            sent_bytes=cost.sent_bytes / values,
            received_bytes=cost.returned_bytes / values,
            encode_ns=1e9 * cost.encode_s / values,
            decode_ns=1e9 * cost.decode_s / values,
        )

    @property
    def _tokenizer(self) -> Path:
        return self.folder / "tokenizer"

    def _stream(self, config: RunConfig, shares: Sequence[int]) -> Iterator[Batch]:
        """Return a worker's microbatches, the same for all ways: what these shares of the text have in each batch."""
        for parts in zip(*(self._share(config, share) for share in shares), strict=True):
            yield joined(parts)

    def _share(self, config: RunConfig, share: int) -> list[Batch]:
        """Return the samples of a share in each batch; they are drawn once for each seed."""
        key = config.run.seed, share
        if key not in self._drawn:
            with (
                tempfile.TemporaryDirectory() as scratch,
                open_batches(config, self._tokenizer, Path(scratch), 1 + share, BATCH // SHARES) as stream,
            ):
                self._drawn[key] = list(islice(stream, self.samples // BATCH))
        return self._drawn[key]

    def _validation(self, config: RunConfig) -> Batch:
        if not self._held_out:
            drawn = draw_samples(config, self._tokenizer)
            assert drawn is not None, "the run holds text out"
            self._held_out.append(drawn)
        return self._held_out[0]


def joined(parts: Sequence[Batch]) -> Batch:
    """Return one batch with the samples of all parts; nothing is padded, and all have sentence pairs."""
    begins, values = [0], parts[0].input_ids.shape[1]
    for part in parts:
        begins.append(begins[-1] + part.samples * values)
    return Batch(
        input_ids=torch.cat([part.input_ids for part in parts]),
        token_type_ids=torch.cat([part.token_type_ids for part in parts if part.token_type_ids is not None]),
        attention_mask=None,
        label_positions=torch.cat([part.label_positions + begin for part, begin in zip(parts, begins, strict=False)]),
        labels=torch.cat([part.labels for part in parts]),
        sop_labels=torch.cat([part.sop_labels for part in parts if part.sop_labels is not None]),
    )


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole or not at all, also where two write it at once."""
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(json.dumps(content))
    made.replace(path)


def figures_of(runs: Sequence[Run]) -> list[Figure]:
    """Return the losses beside those of exact averages, bytes and codec time of each way and number of workers."""
    rows = []
    for band in bands_of(runs):
        name = f"{band.way}, {band.workers} workers"
        rows.append(Figure(f"{name}: held-out loss", band.loss, "", band.exact_loss, WAYS[band.way].baseline))
        rows.append(Figure(f"{name}: mean ratio (seeds: {band.seeds})", band.ratio, ""))
        rows.append(Figure(f"{name}: ratio, standard deviation", band.spread, ""))
    for way in WAYS:
        if same := [run for run in runs if run.way == way]:
            rows.append(Figure(f"{way}: sent", fmean(run.sent_bytes for run in same), "bytes a parameter"))
            rows.append(Figure(f"{way}: received", fmean(run.received_bytes for run in same), "bytes a parameter"))
            rows.append(Figure(f"{way}: to encode", fmean(run.encode_ns for run in same), "ns a parameter"))
            rows.append(Figure(f"{way}: to decode", fmean(run.decode_ns for run in same), "ns a parameter"))
    return rows


if __name__ == "__main__":
    main()
