"""One way from a file of documents to masked batches, measured alone.

`python -m benchmarks.data.data_path_variant PLAN` is what data_path.py starts: a process of its own for each way, bound
to as many cores as the plan says, with as many threads, which measures whenever it is told to. All ways use the same
sentences, tokenizer, length and masker, and only tokens of text that arrive in a batch count.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from datasets import load_dataset
from tokenizers import Tokenizer

from peer.config.run import RunConfig
from peer.data.batching.batches import open_batches
from peer.data.batching.masking import Masker
from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer

SPECIAL_PLACES = 3  # [CLS], [SEP] and [SEP] in each sample
MAPPED_DOCUMENTS = 100  # in one call of the mapped function; datasets' default, 1000, is no faster


@dataclass(frozen=True)
class Plan:
    """The work to be measured."""

    variant: str  # a key of `VARIANTS`
    config_json: str  # with a jsonl source
    tokenizer_dir: str
    tokens: int  # in the source
    cores: int


@dataclass(frozen=True)
class Outcome:
    """Tokens and places for them in one pass over the documents, and how long it took."""

    tokens: int  # of text, in samples
    places: int  # in all samples, padding and special tokens included
    samples: int
    seconds: float

    @property
    def padding(self) -> int:
        return self.places - self.tokens - SPECIAL_PLACES * self.samples


def manyhands(plan: Plan, config: RunConfig) -> Iterator[Outcome]:
    """The product's own path, from the source to the batch, the thread that runs ahead included.

    Both halves of the first epoch, as in the second fewer words are new, and the second epoch, in which none is.
    """
    size, length = config.data.microbatch_size, config.data.sequence_length
    pad = load_special_ids(Path(plan.tokenizer_dir)).pad
    half = plan.tokens // (length - SPECIAL_PLACES) // size // 2  # batches
    with (
        tempfile.TemporaryDirectory() as state,
        open_batches(config, Path(plan.tokenizer_dir), Path(state), 0, size) as batches,
    ):
        for count in (half, half, 2 * half):
            samples = count * size
            began = time.perf_counter()
            padding = sum(int((batch.input_ids == pad).sum()) for batch in islice(batches, count))
            seconds = time.perf_counter() - began
            yield Outcome(samples * (length - SPECIAL_PLACES) - padding, samples * length, samples, seconds)


class Baseline:
    """The steps of both other ways: groups of sentences are paired, cut off where too long, padded, masked."""

    def __init__(self, plan: Plan, config: RunConfig) -> None:
        folder = Path(plan.tokenizer_dir)
        self.config, self.length = config, config.data.sequence_length
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self.special = load_special_ids(folder)
        self.rng = np.random.default_rng(0)
        self._masker = Masker(self.tokenizer.get_vocab_size(), self.special, config.objective.mask_probability)
        self._tokens = self._samples = 0

    def sentences(self, document: str) -> list[str]:
        return split_sentences(document, self.config.run.language)

    def group(self, lengths: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Start, random middle and end of each run of a document's sentences that reaches the sample's length."""
        start = counted = index = 0
        for index, length in enumerate(lengths, 1):
            counted += length
            if counted >= self.length - SPECIAL_PLACES:
                yield start, self._middle(start, index), index
                start, counted = index, 0
        if start < index:
            yield start, self._middle(start, index), index

    def row(self, first: list[int], second: list[int]) -> list[int]:
        """A sample's ids: what does not fit is cut off the longer segment, what is too short is padded."""
        while len(first) + len(second) > self.length - SPECIAL_PLACES:
            (first if len(first) > len(second) else second).pop()
        special = self.special
        row = [special.cls, *first, special.sep, *second, special.sep]
        self._tokens, self._samples = self._tokens + len(row) - SPECIAL_PLACES, self._samples + 1
        return row + [special.pad] * (self.length - len(row))

    def mask(self, rows: list[list[int]]) -> None:
        """A batch, which nobody takes."""
        self._masker.mask(np.array(rows, np.int32), SPECIAL_PLACES, self.rng)

    def outcome(self, began: float) -> Outcome:
        seconds = time.perf_counter() - began
        return Outcome(self._tokens, self._samples * self.length, self._samples, seconds)

    def _middle(self, start: int, end: int) -> int:
        return start + (int(self.rng.integers(1, end - start)) if end - start > 1 else 1)


def sentence_by_sentence(plan: Plan, config: RunConfig) -> Iterator[Outcome]:
    """The plain algorithm: each sentence is tokenized once to count its tokens and once more to build the pair."""
    baseline = Baseline(plan, config)

    def ids(text: str) -> list[int]:
        tokens: list[int] = baseline.tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def rows(document: str) -> Iterator[list[int]]:
        sentences = baseline.sentences(document)
        for start, middle, end in baseline.group(len(ids(sentence)) for sentence in sentences):
            yield baseline.row(ids(" ".join(sentences[start:middle])), ids(" ".join(sentences[middle:end])))

    began = time.perf_counter()
    with Path(_source(config)).open(encoding="utf-8") as lines:
        made = chain.from_iterable(rows(json.loads(line)["text"]) for line in lines)
        while batch := list(islice(made, config.data.microbatch_size)):
            baseline.mask(batch)
    yield baseline.outcome(began)


def datasets_map(plan: Plan, config: RunConfig) -> Iterator[Outcome]:
    """The same steps as a batched map over a streamed dataset; each sentence is tokenized once, many in one call."""
    baseline = Baseline(plan, config)

    def rows(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        by_document = [baseline.sentences(document) for document in batch["text"]]
        flat = list(chain.from_iterable(by_document))
        encodings = iter(baseline.tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        made = []
        for sentences in by_document:
            ids = [encoding.ids for encoding in islice(encodings, len(sentences))]
            for start, middle, end in baseline.group(map(len, ids)):
                first, second = chain.from_iterable(ids[start:middle]), chain.from_iterable(ids[middle:end])
                made.append(baseline.row(list(first), list(second)))
        return {"input_ids": made}

    began = time.perf_counter()
    dataset = load_dataset("json", data_files=_source(config), split="train", streaming=True)
    samples = dataset.map(rows, batched=True, batch_size=MAPPED_DOCUMENTS, remove_columns=["text"])
    for batch in samples.iter(batch_size=config.data.microbatch_size):
        baseline.mask(batch["input_ids"])
    yield baseline.outcome(began)


VARIANTS: dict[str, Callable[[Plan, RunConfig], Iterator[Outcome]]] = {
    "manyhands": manyhands,
    "sentence by sentence": sentence_by_sentence,
    "datasets.map": datasets_map,
}


def environment(cores: int) -> dict[str, str]:
    """Variables that hold every library to so many threads."""
    threads = {name: str(cores) for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**threads, "TOKENIZERS_PARALLELISM": "true" if cores > 1 else "false"}


def measure(plan: Plan) -> list[Outcome]:
    """Each pass over the documents."""
    return list(VARIANTS[plan.variant](plan, RunConfig.from_json(plan.config_json)))


def main() -> None:
    """Read the plan; for each line of the standard input measure once and print the outcomes as a line of JSON."""
    plan = Plan(**json.loads(sys.argv[1]))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.cores])
    for _ in sys.stdin:
        print(json.dumps([asdict(outcome) for outcome in measure(plan)]), flush=True)


def _source(config: RunConfig) -> str:
    (path,) = config.data.sources[0].paths
    return str(path)


if __name__ == "__main__":
    main()
