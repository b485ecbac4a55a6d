"""Tokens per second from a file of documents to masked batches, on one core and on two, compared with a mapped dataset.

The baseline "datasets.map" is the common practice: it tokenizes each sentence once, builds pairs in batches on a
streamed dataset, truncates long samples and pads short ones. Each pipeline runs in a separate process, pinned to the
cores. Both use the same sentences, tokenizer, length and masker, and only text tokens that arrive in a batch count.
By default both read the built-in corpus with a tokenizer trained on it:

    python benchmarks/data/data_path.py [--quick] [--json] [--preset PRESET]
    python benchmarks/data/data_path.py --corpus corpus.jsonl.gz --language bn --tokenizer tokenizer.json.gz
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
from datasets import load_dataset
from tokenizers import Tokenizer

from benchmarks.support.reporting import Figure, argument_parser, report
from peer.config.run import RunConfig
from peer.config.tokenizer import PRESETS
from peer.data.batching.batches import open_batches
from peer.data.batching.masking import Masker
from peer.data.prepare import prepare_tokenizer
from peer.data.sources.documents import sample_documents
from peer.data.tokenization.encoding import Encoder
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer

CORES = {"one core": 1, "two cores": 2}
MICROBATCH_SIZE = 32
ROUNDS, QUICK_ROUNDS = 5, 3
QUICK_CHARACTERS = 1_000_000
SPECIAL_PLACES = 3  # [CLS], [SEP] and [SEP] in each sample
MAPPED_DOCUMENTS = 100  # documents per call of the mapped function; datasets' default of 1000 is no faster


@dataclass(frozen=True)
class Plan:
    """The run and the corpus to measure with."""

    config: RunConfig  # configuration with a jsonl source
    tokenizer_dir: Path
    tokens: int  # number of tokens in the source


@dataclass(frozen=True)
class Outcome:
    """Tokens, token positions and duration of one pass over the documents."""

    tokens: int  # number of text tokens in samples
    places: int  # number of positions in all samples, including padding and special tokens
    samples: int
    seconds: float

    @property
    def padding(self) -> int:
        """Return the number of padded positions."""
        return self.places - self.tokens - SPECIAL_PLACES * self.samples


def manyhands(plan: Plan) -> list[Outcome]:
    """Measure manyhands' own pipeline from source to batch, including the prefetching thread.

    Three passes are timed: the first half of epoch 1, its second half, and epoch 2. Tokenized words are cached; the
    second half has fewer new words than the first, and epoch 2 has none.
    """
    size, length = plan.config.data.microbatch_size, plan.config.data.sequence_length
    pad = load_special_ids(plan.tokenizer_dir).pad
    half = plan.tokens // (length - SPECIAL_PLACES) // size // 2  # in batches
    outcomes = []
    with (
        tempfile.TemporaryDirectory() as state,
        open_batches(plan.config, plan.tokenizer_dir, Path(state), 0, size) as batches,
    ):
        for count in (half, half, 2 * half):
            samples = count * size
            began = time.perf_counter()
            padding = sum(int((batch.input_ids == pad).sum()) for batch in islice(batches, count))
            seconds = time.perf_counter() - began
            outcomes.append(Outcome(samples * (length - SPECIAL_PLACES) - padding, samples * length, samples, seconds))
    return outcomes


class Mapped:
    """The samples of a mapped dataset: pairs of sentence groups, truncated or padded to the sample's length."""

    def __init__(self, plan: Plan) -> None:
        self.language, self.length = plan.config.run.language, plan.config.data.sequence_length
        self.tokenizer: Tokenizer = load_tokenizer(plan.tokenizer_dir)
        self.special, self.rng = load_special_ids(plan.tokenizer_dir), np.random.default_rng(0)
        self.tokens = self.samples = 0

    def rows(self, batch: Mapping[str, Sequence[str]]) -> dict[str, list[list[int]]]:
        """Return the samples of a batch of documents, tokenizing each sentence once, many sentences per call."""
        by_document = [split_sentences(document, self.language) for document in batch["text"]]
        flat = list(chain.from_iterable(by_document))
        encodings = iter(self.tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        made = []
        for sentences in by_document:
            ids = [encoding.ids for encoding in islice(encodings, len(sentences))]
            for start, end in self._runs(map(len, ids)):
                middle = start + (int(self.rng.integers(1, end - start)) if end - start > 1 else 1)
                first, second = chain.from_iterable(ids[start:middle]), chain.from_iterable(ids[middle:end])
                made.append(self._row(list(first), list(second)))
        return {"input_ids": made}

    def _runs(self, lengths: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each group of consecutive sentences that reaches the sample's length."""
        start = counted = index = 0
        for index, length in enumerate(lengths, 1):
            counted += length
            if counted >= self.length - SPECIAL_PLACES:
                yield start, index
                start, counted = index, 0
        if start < index:
            yield start, index

    def _row(self, first: list[int], second: list[int]) -> list[int]:
        while len(first) + len(second) > self.length - SPECIAL_PLACES:
            (first if len(first) > len(second) else second).pop()
        self.tokens, self.samples = self.tokens + len(first) + len(second), self.samples + 1
        row = [self.special.cls, *first, self.special.sep, *second, self.special.sep]
        return row + [self.special.pad] * (self.length - len(row))


def datasets_map(plan: Plan) -> list[Outcome]:
    """Measure the baseline, a batched map over a streamed dataset."""
    mapped = Mapped(plan)
    masker = Masker(mapped.tokenizer.get_vocab_size(), mapped.special, plan.config.objective.mask_probability)
    began = time.perf_counter()
    [source] = plan.config.data.sources[0].paths
    dataset = load_dataset("json", data_files=str(source), split="train", streaming=True)
    samples = dataset.map(mapped.rows, batched=True, batch_size=MAPPED_DOCUMENTS, remove_columns=["text"])
    for batch in samples.iter(batch_size=plan.config.data.microbatch_size):
        masker.mask(np.array(batch["input_ids"], np.int32), SPECIAL_PLACES, mapped.rng)
    seconds = time.perf_counter() - began
    return [Outcome(mapped.tokens, mapped.samples * mapped.length, mapped.samples, seconds)]


WAYS: dict[str, Callable[[Plan], list[Outcome]]] = {"manyhands": manyhands, "datasets.map": datasets_map}
Outcomes = dict[str, list[list[Outcome]]]  # pipeline -> rounds -> passes


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both pipelines alternately, so that changes in the machine's load affect both; report medians."""
    options = _parse(arguments)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        plan = _prepare(options, Path(folder))
        for name, cores in CORES.items():
            if cores <= len(os.sched_getaffinity(0)):
                outcomes = _measure(plan, cores, QUICK_ROUNDS if options.quick else ROUNDS)
                figures += _speeds(name, outcomes)
    ours, mapped = outcomes["manyhands"][0][0], outcomes["datasets.map"][0][0]
    padding = [100 * outcome.padding / outcome.places for outcome in (ours, mapped)]
    figures.append(Figure("padding", padding[0], "% of places", padding[1], "datasets.map"))
    figures.append(Figure("datasets.map: cut off", 100 * (plan.tokens - mapped.tokens) / plan.tokens, "% of tokens"))
    report("data path", figures, options.json)


def _prepare(options: argparse.Namespace, folder: Path) -> Plan:
    """Write the documents as JSON lines, prepare the tokenizer, and count the tokens."""
    config = _config(options, options.corpus)
    documents = list(sample_documents(config, limit=10**9))
    if options.quick:
        documents = list(_first_characters(documents, QUICK_CHARACTERS))
    prepare_tokenizer(config, folder / "tokenizer")
    tokens = len(Encoder(load_tokenizer(folder / "tokenizer"), config.run.language).encode(documents).tokens)
    corpus = folder / "corpus.jsonl"
    with corpus.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents)
    return Plan(_config(options, corpus), folder / "tokenizer", tokens)


def _measure(plan: Plan, cores: int, rounds: int) -> Outcomes:
    """Measure the pipelines alternately for this many rounds, after one discarded warm-up round."""
    os.environ.update(environment(cores))
    with ExitStack() as stack:
        processes = {
            way: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), _hold_to, (cores,))) for way in WAYS
        }
        measured = [
            {way: process.submit(WAYS[way], plan).result() for way, process in processes.items()}
            for _ in range(1 + rounds)
        ]
    return {way: [outcomes[way] for outcomes in measured[1:]] for way in WAYS}


def environment(cores: int) -> dict[str, str]:
    """Return the environment variables that limit every library to this many threads."""
    threads = {name: str(cores) for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**threads, "TOKENIZERS_PARALLELISM": "true" if cores > 1 else "false"}


def _hold_to(cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _speeds(cores: str, outcomes: Outcomes) -> Iterator[Figure]:
    """Yield the medians of our speeds and of the baseline's."""
    ours = outcomes["manyhands"]
    theirs = median(map(_speed, outcomes["datasets.map"]))
    for name, speed in {
        "first epoch": median(_speed(halves) for *halves, _ in ours),
        "its second half": median(_speed([half]) for _, half, _ in ours),
        "later epochs": median(_speed([later]) for *_, later in ours),
    }.items():
        yield Figure(f"{cores}: {name}", speed, "tokens/s", theirs, "datasets.map")


def _speed(outcomes: Sequence[Outcome]) -> float:
    """Return the average tokens per second of several passes."""
    return sum(outcome.tokens for outcome in outcomes) / sum(outcome.seconds for outcome in outcomes)


def _config(options: argparse.Namespace, path: Path | None) -> RunConfig:
    """Return the run's configuration for the corpus given in the options, or for the file prepared from it."""
    source = {"kind": "builtin"}
    if path is not None:
        source = {"kind": "jsonl" if ".jsonl" in path.name else "text", "path": str(path)}
    length = {"sequence_length": options.sequence_length, "microbatch_size": MICROBATCH_SIZE}
    tokenizer = None if options.tokenizer is None else str(options.tokenizer)
    return RunConfig.from_mapping(
        {
            "run": {"language": options.language},
            "data": {"sources": [source], **length},
            "tokenizer": {"path": tokenizer, "preset": options.preset, "vocab_size": 8000},
        }
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Tokens per second from a file of documents to masked batches.")
    parser.add_argument(
        "--corpus", type=Path, help="text or .jsonl file, may be gzipped (default: the built-in corpus)"
    )
    parser.add_argument("--language", default="en", help="language of the corpus (default: en)")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, may be gzipped (default: train one)")
    parser.add_argument("--preset", choices=PRESETS, default="albert", help="preset of the tokenizer to train")
    parser.add_argument("--sequence-length", type=int, default=512)
    return parser.parse_args(arguments)


def _first_characters(documents: list[str], characters: int) -> Iterator[str]:
    for document in documents:
        if characters <= 0:
            return
        characters -= len(document)
        yield document


if __name__ == "__main__":
    main()
