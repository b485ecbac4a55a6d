"""Memory of the data path while a million documents go through it, sampled along the way.

    python benchmarks/data_memory.py [--quick] [--json] [--documents N]

The documents are made up, of words whose frequencies fall as those of a language do and of which there is no end; they
are written to a file of JSON lines and read from there as a run's source is. What counts is the memory that the process
has for itself: pages of a mapped file, which the system takes back when it needs them, do not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil

from benchmarks.reporting import Figure, argument_parser, report
from peer.config.run import RunConfig
from peer.data.batching.batches import SampleMaker, make_batches
from peer.data.prepare import prepare_tokenizer
from peer.data.sources.documents import DocumentStream, open_documents
from peer.data.sources.reader import Position

DOCUMENTS = 1_000_000
QUICK_DOCUMENTS = 100_000
READINGS = 10
WARM = 3  # readings until tables that may grow up to a limit are at it
WORDS_PER_DOCUMENT = 25  # on average
ZIPF = 1.2  # how fast frequencies fall with rank; English has about this
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
MICROBATCH_SIZE = 32
MIB = 2**20


class Counted:
    """A stream that counts the documents that were taken from it."""

    def __init__(self, documents: DocumentStream) -> None:
        self._documents = documents
        self.taken = 0

    def __next__(self) -> str:
        self.taken += 1
        return next(self._documents)

    @property
    def epoch(self) -> int:
        return self._documents.epoch

    def position(self) -> Position:
        return self._documents.position()

    def count(self, tokens: Sequence[int]) -> None:
        self._documents.count(tokens)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the documents, stream them, report what was sampled."""
    options = _parse(arguments)
    count = options.documents or (QUICK_DOCUMENTS if options.quick else DOCUMENTS)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        with corpus.open("w") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in made_up_documents(count))
        readings = dict(stream(_config(corpus), Path(folder), count))
    report("data memory", list(_figures(readings)), options.json)


def made_up_documents(count: int) -> Iterator[str]:
    """Documents of a few sentences each, always the same ones."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        ranks = rng.zipf(ZIPF, 1 + rng.poisson(WORDS_PER_DOCUMENT))
        words = [spell(int(rank)) for rank in ranks]
        yield " ".join(f"{' '.join(words[start : start + 9]).capitalize()}." for start in range(0, len(words), 9))


def spell(rank: int) -> str:
    """The word of that rank: the rarer, the longer."""
    word = ""
    while rank:
        rank, syllable = divmod(rank, len(SYLLABLES))
        word += SYLLABLES[syllable]
    return word


def stream(config: RunConfig, folder: Path, count: int) -> Iterator[tuple[int, float]]:
    """Documents taken so far and memory in MiB, again and again until all have gone through."""
    prepare_tokenizer(config, folder / "tokenizer")
    documents = Counted(open_documents(config, 0))
    batches = make_batches(
        documents, SampleMaker(config, folder / "tokenizer", np.random.default_rng(0)), MICROBATCH_SIZE
    )
    for reading in range(1, READINGS + 1):
        _take(batches, documents, reading * count // READINGS)
        yield documents.taken, own_memory_mib()


def own_memory_mib() -> float:
    """Resident memory of this process that no file stands behind."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / MIB


def _take(batches: Iterator[object], documents: Counted, count: int) -> None:
    """Make batches until so many documents were taken."""
    while documents.taken < count:
        next(batches)


def _figures(readings: dict[int, float]) -> Iterator[Figure]:
    for documents, memory in readings.items():
        yield Figure(f"after {documents:,} documents", memory, "MiB")
    warm, *later = list(readings.values())[WARM - 1 :]
    yield Figure(f"most after {WARM / READINGS:.0%} of them", max(later), "MiB", warm, f"at {WARM / READINGS:.0%}")


def _config(corpus: Path) -> RunConfig:
    return RunConfig.from_mapping(
        {
            "data": {
                "sources": [{"kind": "jsonl", "path": str(corpus)}],
                "sequence_length": 128,
                "microbatch_size": MICROBATCH_SIZE,
            },
            "tokenizer": {"vocab_size": 4000, "max_training_documents": 5000},
        }
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Memory of the data path while many documents go through it.")
    parser.add_argument("--documents", type=int, help=f"how many (default: {DOCUMENTS:,}, or {QUICK_DOCUMENTS:,})")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
