"""Sampling of a corpus for `manyhands corpus sample`, in two passes: survey and selection.

The first pass counts documents, drops duplicates and takes a uniform sample, from which the scorer,
the quartiles and the scale are computed. The second pass scores every document and writes the
selected documents as JSON Lines. Memory does not grow with the corpus, except for one bit per
document that marks duplicates.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from auth.errors import ConfigError
from peer.config.data import Duplicates, Method, Sampling, ScorerConfig, Source
from peer.config.run import RunConfig
from peer.data.selection.duplicates import open_duplicates
from peer.data.selection.perplexity import Floats, PerplexityTally, decide, plan_sampling, probabilities, quartiles_of
from peer.data.selection.scoring import Scorer
from peer.data.sources.documents import open_units
from peer.data.sources.faults import describe
from peer.data.tokenization.training import train_tokenizer
from peer.network.remote_files import PACKED_ENDINGS

Packing = Literal["none", "gz", "zst"]
NAMES = {"none": "documents.jsonl", "gz": "documents.jsonl.gz", "zst": "documents.jsonl.zst"}
GZIP_LEVEL = 6
BLOCK = 1_000  # number of documents read at a time
RUN_FILES = (".yaml", ".yml")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
Blocks = Iterable[list[str]]
Write = Callable[[Sequence[str]], None]
SAMPLE_CHARACTERS = 100_000_000
SCORER_CHARACTERS = 10_000_000  # sample size sufficient to train a scorer's tokenizer
SCORER_PIECES = 16_000
_NUMBER = re.compile(r"\d+|\d{1,3}(,\d{3})+|\d{1,3}(_\d{3})+")  # optional thousands separators


@dataclass(frozen=True)
class Target:
    """The number or the share of documents to keep."""

    number: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse `250000`, `250,000`, `250_000`, `10%` or `0.1`. Raises `ConfigError` for any other text."""
        if _NUMBER.fullmatch(text) and (number := int(text.replace(",", "").replace("_", ""))):
            return cls(number=number)
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = 0.0
        if 0 < share <= 1:
            return cls(share=share)
        raise ConfigError(f"--target ({text}) must be a whole number of documents, or a share such as 10% or 0.1.")

    def share_of(self, documents: int) -> float:
        """Return the target as a share of this many documents. Raises `ConfigError` if there are too few."""
        if self.number is None:
            assert self.share is not None
            return self.share
        if self.number > documents:
            raise ConfigError(f"--target ({self.number:,}) is more than the {documents:,} documents available.")
        return self.number / documents


@dataclass(frozen=True)
class Survey:
    """The result of the first pass over a corpus."""

    read: int
    documents: int  # number of documents, not counting duplicates
    sample: Sequence[str]
    is_new: Sequence[NDArray[np.uint8]]  # for each block, one bit per document; empty if duplicates are kept


def survey(blocks: Blocks, duplicates: Duplicates, max_documents: int, rng: np.random.Generator) -> Survey:
    """Make the first pass over a corpus. Raises `ConfigError` if it is empty."""
    sample = CorpusSample(max_documents, SAMPLE_CHARACTERS, rng)
    keep = open_duplicates(duplicates)
    read = documents = 0
    is_new: list[NDArray[np.uint8]] = []
    for block in blocks:
        new = np.ones(len(block), np.bool_) if keep is None else keep(block)
        sample.add([block[index] for index in np.flatnonzero(new).tolist()])
        read, documents = read + len(block), documents + int(new.sum())
        if keep is not None:
            is_new.append(np.packbits(new))
    if not documents:
        raise ConfigError("The sources hold no documents: check their paths.")
    return Survey(read, documents, sample.documents, is_new)


def train_scorer(sample: Sequence[str], config: RunConfig, path: Path) -> None:
    """Train a scorer's tokenizer on documents and save it. Raises `ConfigError` if that fails."""
    run = config.tokenizer
    preset = run.preset if run.path is None and run.chosen_algorithm == "unigram" else "albert"
    wanted = {"run": {"language": config.run.language}, "tokenizer": {"preset": preset, "vocab_size": SCORER_PIECES}}
    ends = list(accumulate(map(len, sample)))  # cumulative character counts
    enough = bisect_left(ends, SCORER_CHARACTERS) + 1  # includes the document that reaches the limit
    train_tokenizer(RunConfig.from_mapping(wanted), sample[:enough]).save(str(path))


def plan(
    found: Survey,
    scorer: Scorer,
    described: ScorerConfig,
    method: Method,
    target: Target,
    factors: Sequence[float] | None,
    width: float | None,
) -> tuple[Sampling, PerplexityTally]:
    """Plan the sampling from the sample's perplexities; return the plan and an empty tally."""
    perplexities: Floats = scorer.perplexities(found.sample)
    perplexities = perplexities[np.isfinite(perplexities)]
    if not len(perplexities):
        raise ConfigError("No document of the sources has words to score: check their paths.")
    sampling = plan_sampling(method, perplexities, target.share_of(found.documents), described, factors, width)
    return sampling, PerplexityTally(perplexities, sampling.quartiles or quartiles_of(perplexities))


def write_kept(
    blocks: Blocks, found: Survey, scorer: Scorer, sampling: Sampling, tally: PerplexityTally, write: Write
) -> None:
    """Make the second pass over a corpus, and write the kept documents."""
    for documents in _without_duplicates(blocks, found):
        perplexities = scorer.perplexities(documents)
        chances = probabilities(sampling, perplexities)
        kept = decide(documents, chances)
        tally.add(perplexities, chances, kept)
        write([documents[index] for index in np.flatnonzero(kept).tolist()])


def _without_duplicates(blocks: Blocks, found: Survey) -> Iterator[list[str]]:
    if not found.is_new:
        yield from blocks
        return
    known = iter(found.is_new)
    for block in blocks:
        new = np.unpackbits(next(known, np.empty(0, np.uint8)))
        if len(new) < len(block):
            raise ConfigError("The sources have grown while they were read: sample them when they are complete.")
        yield [block[index] for index in np.flatnonzero(new[: len(block)]).tolist()]


class CorpusSample:
    """A uniform sample of a stream of documents, limited in documents and in characters.

    Each document gets a random key, and the documents with the smallest keys are kept. The total
    number of documents need not be known.
    """

    def __init__(self, max_documents: int, max_characters: int, rng: np.random.Generator) -> None:
        self._max_documents, self._max_characters, self._rng = max_documents, max_characters, rng
        self._kept: list[tuple[float, str]] = []  # a heap of (negated key, document)
        self._characters = 0
        self._border = 1.0  # only documents with a smaller key are accepted

    def add(self, documents: Sequence[str]) -> None:
        """Offer more documents to the sample."""
        keys = self._rng.random(len(documents))
        for index in np.flatnonzero(keys < self._border).tolist():
            if keys[index] < self._border:  # earlier documents may have lowered the border
                self._take(float(keys[index]), documents[index])

    @property
    def documents(self) -> list[str]:
        """The sampled documents, in random order."""
        return [document for _, document in sorted(self._kept)]

    def _take(self, key: float, document: str) -> None:
        heappush(self._kept, (-key, document))
        self._characters += len(document)
        while len(self._kept) > 1 and self._is_full():
            negative, dropped = heappop(self._kept)
            self._border = -negative
            self._characters -= len(dropped)

    def _is_full(self) -> bool:
        return len(self._kept) > self._max_documents or self._characters > self._max_characters


@contextmanager
def open_writer(folder: Path, packing: Packing) -> Iterator[Write]:
    """Yield a function that appends documents to the file `NAMES[packing]` in the folder.

    The file contains JSON objects with a `text` field, one per line, and is complete on exit.
    """
    path = folder / NAMES[packing]
    openers: Mapping[Packing, Callable[[], Any]] = {
        "none": partial(path.open, "wb"),
        "gz": partial(gzip.open, path, "wb", GZIP_LEVEL),
        "zst": partial(zstandard.open, path, "wb"),
    }
    with openers[packing]() as file:

        def write(documents: Sequence[str]) -> None:
            lines = [json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents]
            file.write("".join(lines).encode("utf-8", "replace"))

        yield write


def sources_of(names: Sequence[str], text_field: str) -> RunConfig:
    """Load a run file, or create a run with these files as sources. Raises `ConfigError` if invalid."""
    if any(Path(name).suffix in RUN_FILES for name in names):
        if len(names) > 1:
            raise ConfigError("Give one run file, or files of documents, not both.")
        return RunConfig.from_yaml(Path(names[0]))
    sources = [
        {"kind": "jsonl", "path": name, "text_field": text_field} if _is_json(name) else {"kind": "text", "path": name}
        for name in names
    ]
    return RunConfig.from_mapping({"data": {"sources": sources}})


def read_blocks(config: RunConfig) -> Iterator[list[str]]:
    """Yield all documents of all sources in blocks of `BLOCK`. Raises `ConfigError` on failure."""
    documents = (document for source in config.data.sources for document in _read(source))
    while block := list(islice(documents, BLOCK)):
        yield block


def _read(source: Source) -> Iterator[str]:
    """Yield a source's documents that pass its length and language filters."""
    name, least, most = source.name, source.filters.min_characters, source.filters.max_characters
    try:
        units = open_units(source, whole=True)
        for number in range(len(units)):
            name = units.name(number)
            with closing(units.open(number, None)) as unit:
                for document in unit:
                    if document and document.strip() and least <= len(document) <= (most or len(document)):
                        yield document
    except ConfigError:
        raise
    except Exception as error:  # file systems and formats raise errors of arbitrary types
        raise ConfigError(f"Cannot read {name} ({describe(error)}): fix it, or omit it.") from error


def _is_json(name: str) -> bool:
    plain, folder = name.lower(), Path(name)
    for packed in PACKED_ENDINGS:
        plain = plain.removesuffix(packed)
    return plain.endswith(JSON_ENDINGS) or (folder.is_dir() and any(folder.glob("*.jsonl*")))
