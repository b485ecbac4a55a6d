"""The work of `manyhands corpus sample`: a corpus is read twice, to learn how it is, and to keep a part of it.

The first reading counts documents, drops duplicates and takes an even sample; scorer, quartiles and scale come from it
alone. The second scores every document and decides. Memory does not grow with the corpus, but for a bit for each
document that says whether it is a duplicate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from auth.errors import ConfigError
from peer.config.sampling import Duplicates, Method, Sampling
from peer.config.sampling import Scorer as ScorerConfig
from peer.data.corpus_sample import CorpusSample
from peer.data.document_writer import DocumentWriter
from peer.data.duplicates import open_duplicates
from peer.data.kenlm_scoring import train_kenlm
from peer.data.perplexity_sampling import Floats, decide, plan_sampling, probabilities, quartiles_of
from peer.data.perplexity_tally import PerplexityTally
from peer.data.scoring import Scorer
from peer.data.tokenizer_training import train_tokenizer
from peer.run_config import RunConfig

Blocks = Iterable[list[str]]
SAMPLE_CHARACTERS = 100_000_000
SCORER_CHARACTERS = 10_000_000  # of the sample are enough to learn the pieces of a scorer
SCORER_PIECES = 16_000
_NUMBER = re.compile(r"\d+|\d{1,3}(,\d{3})+|\d{1,3}(_\d{3})+")  # its groups of thousands parted, or not


@dataclass(frozen=True)
class Target:
    """How many documents to keep: a number of them, or a share of all."""

    number: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """`250000`, `250,000`, `250_000`, `10%` or `0.1`; raises `ConfigError`."""
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
        """The share of so many documents; raises `ConfigError` if there are too few."""
        if self.number is None:
            assert self.share is not None
            return self.share
        if self.number > documents:
            raise ConfigError(f"--target ({self.number:,}) is more than the {documents:,} documents that there are.")
        return self.number / documents


@dataclass(frozen=True)
class Survey:
    """What the first reading found."""

    read: int
    documents: int  # without duplicates
    sample: Sequence[str]
    is_new: bytes  # a bit for each document that was read


def survey(blocks: Blocks, duplicates: Duplicates, max_documents: int, rng: np.random.Generator) -> Survey:
    """Read a corpus for the first time; raises `ConfigError` if it is empty."""
    sample = CorpusSample(max_documents, SAMPLE_CHARACTERS, rng)
    filter_ = open_duplicates(duplicates)
    read = documents = 0
    bits = bytearray()
    left = np.zeros(0, np.bool_)  # what does not fill a byte yet
    for block in blocks:
        new = np.ones(len(block), np.bool_) if filter_ is None else filter_.keep(block)
        sample.add([block[index] for index in np.flatnonzero(new).tolist()])
        read, documents = read + len(block), documents + int(new.sum())
        if filter_ is not None:
            left = np.concatenate((left, new))
            whole = len(left) // 8 * 8
            bits += np.packbits(left[:whole]).tobytes()
            left = left[whole:]
    if not documents:
        raise ConfigError("The sources hold no documents: check their paths.")
    return Survey(read, documents, sample.documents, bytes(bits) + np.packbits(left).tobytes())


def train_scorer(sample: Sequence[str], config: RunConfig, path: Path) -> None:
    """Learn the pieces of a scorer on documents, and save it; raises `ConfigError`."""
    run = config.tokenizer
    preset = run.preset if run.path is None and run.chosen_algorithm == "unigram" else "albert"
    wanted = {"run": {"language": config.run.language}, "tokenizer": {"preset": preset, "vocab_size": SCORER_PIECES}}
    train_tokenizer(RunConfig.from_mapping(wanted), _first_characters(sample, SCORER_CHARACTERS)).save(str(path))


def train_clean_model(clean: Blocks, path: Path, order: int) -> None:
    """Train a KenLM model on clean documents; raises `ConfigError`."""
    train_kenlm((document for block in clean for document in block), path, order)


def plan(
    found: Survey,
    scorer: Scorer,
    described: ScorerConfig,
    method: Method,
    target: Target,
    factors: Sequence[float] | None,
    width: float | None,
) -> tuple[Sampling, PerplexityTally]:
    """How to sample, from the perplexities of the sample, and an empty count of what comes of it."""
    perplexities: Floats = scorer.perplexities(found.sample)
    perplexities = perplexities[np.isfinite(perplexities)]
    if not len(perplexities):
        raise ConfigError("No document of the sources has words to score: check their paths.")
    sampling = plan_sampling(method, perplexities, target.share_of(found.documents), described, factors, width)
    return sampling, PerplexityTally(perplexities, sampling.quartiles or quartiles_of(perplexities))


def write_kept(
    blocks: Blocks, found: Survey, scorer: Scorer, sampling: Sampling, tally: PerplexityTally, out: DocumentWriter
) -> None:
    """Read a corpus for the second time, and write what is kept."""
    for documents in _without_duplicates(blocks, found):
        perplexities = scorer.perplexities(documents)
        chances = probabilities(sampling, perplexities)
        kept = decide(documents, chances)
        tally.add(perplexities, chances, kept)
        out.write([documents[index] for index in np.flatnonzero(kept).tolist()])


def _without_duplicates(blocks: Blocks, found: Survey) -> Iterator[list[str]]:
    if not found.is_new:
        yield from blocks
        return
    at = 0
    for block in blocks:
        packed = np.frombuffer(found.is_new[at // 8 : (at + len(block) + 7) // 8], np.uint8)
        new = np.unpackbits(packed)[at % 8 : at % 8 + len(block)]
        if len(new) < len(block):
            raise ConfigError("The sources have grown while they were read: sample them when they are complete.")
        at += len(block)
        yield [block[index] for index in np.flatnonzero(new).tolist()]


def _first_characters(documents: Sequence[str], characters: int) -> Iterator[str]:
    for document in documents:
        if characters <= 0:
            return
        characters -= len(document)
        yield document
