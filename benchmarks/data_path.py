"""Tokens per second from text to masked batches, against the plain algorithm that goes sentence by sentence.

The plain algorithm tokenizes each sentence once to count its tokens and once more to build the pair, cuts off what is
too long and pads what is too short. Both use the same sentences, tokenizer, length and masker, and only tokens of text
that arrive in a sample count. By default both read the built-in corpus with a tokenizer trained on it:

    python benchmarks/data_path.py [--quick] [--json]
    python benchmarks/data_path.py --corpus corpus.jsonl.gz --tokenizer tokenizer.json.gz
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
from tokenizers import Tokenizer

from benchmarks.reporting import Figure, argument_parser, report
from peer.data.batches import SampleMaker
from peer.data.documents import sample_documents
from peer.data.encoding import Encoder
from peer.data.masking import Masker
from peer.data.sentences import split_sentences
from peer.data.special_tokens import SpecialIds
from peer.data.tokenizers import load_special_ids, load_tokenizer, prepare_tokenizer
from peer.run_config import RunConfig

CHUNK_DOCUMENTS = 60
SPECIAL_PLACES = 3  # [CLS], [SEP] and [SEP] in each sample
MICROBATCH_SIZE = 32
ROUNDS = 5
QUICK_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """What one pass over the documents gave; all in tokens or places for them."""

    delivered: int  # tokens of text in samples
    kept: int  # tokens that wait for the next documents to fill a sample
    padding: int
    places: int  # in all samples, padding and special tokens included


@dataclass(frozen=True)
class Comparison:
    """One pass of each on the same documents, and the speeds of several."""

    tokens: int  # in the documents
    ours: Outcome
    plain: Outcome
    our_speeds: list[float]  # tokens/s, each time with an empty memory for words
    later_speeds: list[float]  # tokens/s when the same words come again, as in a later epoch
    plain_speeds: list[float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both, turn about, and report the medians."""
    options = _parse(arguments)
    config = _config(options)
    documents = list(sample_documents(config, limit=10**9))
    if options.quick:
        documents = list(_first_characters(documents, QUICK_CHARACTERS))
    with tempfile.TemporaryDirectory() as folder:
        prepare_tokenizer(config, Path(folder))
        comparison = compare(config, Path(folder), documents, rounds=3 if options.quick else ROUNDS)
    report("data path", _figures(comparison), options.json)


def compare(config: RunConfig, folder: Path, documents: list[str], rounds: int) -> Comparison:
    """Alternate, so that a change in the machine's load meets both alike."""
    tokenizer, special = load_tokenizer(folder), load_special_ids(folder)
    our_speeds, later_speeds, plain_speeds = [], [], []
    for _ in range(rounds):
        maker = SampleMaker(config, folder, np.random.default_rng(0))
        ours, seconds = _timed(lambda: our_pass(config, maker, special, documents))  # noqa: B023 - called at once
        our_speeds.append(ours.delivered / seconds)
        later, seconds = _timed(lambda: our_pass(config, maker, special, documents))  # noqa: B023
        later_speeds.append(later.delivered / seconds)
        plain, seconds = _timed(lambda: plain_pass(config, tokenizer, special, documents))
        plain_speeds.append(plain.delivered / seconds)
    tokens = len(Encoder(tokenizer, config.run.language).encode(documents).tokens)
    return Comparison(tokens, ours, plain, our_speeds, later_speeds, plain_speeds)


def our_pass(config: RunConfig, maker: SampleMaker, special: SpecialIds, documents: list[str]) -> Outcome:
    """The product's own path, without the thread that runs ahead."""
    size = config.data.microbatch_size
    samples_made = padding = 0
    for start in range(0, len(documents), CHUNK_DOCUMENTS):
        samples = maker.samples(documents[start : start + CHUNK_DOCUMENTS])
        for first in range(0, len(samples), size):
            maker.batch(samples[first : first + size])
        samples_made += len(samples)
        padding += int((samples.input_ids == special.pad).sum())
    places = samples_made * config.data.sequence_length
    return Outcome(places - padding - SPECIAL_PLACES * samples_made, maker.carried_tokens, padding, places)


def plain_pass(config: RunConfig, tokenizer: Tokenizer, special: SpecialIds, documents: list[str]) -> Outcome:
    """Sentence by sentence: count, collect until the sample is full, tokenize the pair again, truncate, pad, mask."""
    rng = np.random.default_rng(0)
    length = config.data.sequence_length
    masker = Masker(tokenizer.get_vocab_size(), special, config.objective.mask_probability)
    delivered = samples = 0
    rows: list[list[int]] = []
    for first, second in chain.from_iterable(_plain_pairs(config, tokenizer, text, rng) for text in documents):
        row = _plain_row(tokenizer, special, first, second, length)
        delivered, samples = delivered + len(row) - SPECIAL_PLACES, samples + 1
        rows.append(row + [special.pad] * (length - len(row)))
        if len(rows) == config.data.microbatch_size:
            masker.mask(np.array(rows, np.int32), SPECIAL_PLACES, rng)
            rows.clear()
    places = samples * length
    return Outcome(delivered, 0, places - delivered - SPECIAL_PLACES * samples, places)


def _plain_pairs(
    config: RunConfig, tokenizer: Tokenizer, document: str, rng: np.random.Generator
) -> Iterator[tuple[str, str]]:
    """Groups of sentences that reach the sample's length, each divided in two at a random sentence."""
    group: list[str] = []
    counted = 0
    sentences = split_sentences(document, config.run.language)
    length = config.data.sequence_length
    for number, sentence in enumerate(sentences):
        group.append(sentence)
        counted += len(tokenizer.encode(sentence, add_special_tokens=False).ids)
        if counted >= length - 3 or number == len(sentences) - 1:
            cut = int(rng.integers(1, len(group))) if len(group) > 1 else 1
            yield " ".join(group[:cut]), " ".join(group[cut:])
            group, counted = [], 0


def _plain_row(tokenizer: Tokenizer, special: SpecialIds, first: str, second: str, length: int) -> list[int]:
    """The pair's ids; what does not fit is cut off the longer segment."""
    a = tokenizer.encode(first, add_special_tokens=False).ids
    b = tokenizer.encode(second, add_special_tokens=False).ids
    while len(a) + len(b) > length - SPECIAL_PLACES:
        (a if len(a) > len(b) else b).pop()
    return [special.cls, *a, special.sep, *b, special.sep]


def _timed(measured: Callable[[], Outcome]) -> tuple[Outcome, float]:
    started = time.perf_counter()
    outcome = measured()
    return outcome, time.perf_counter() - started


def _figures(comparison: Comparison) -> list[Figure]:
    ours, plain, name = comparison.ours, comparison.plain, "sentence by sentence"

    def padding(outcome: Outcome) -> float:
        return 100 * outcome.padding / outcome.places

    def lost(outcome: Outcome) -> float:
        return 100 * (comparison.tokens - outcome.delivered - outcome.kept) / comparison.tokens

    plain_speed = median(comparison.plain_speeds)
    return [
        Figure("speed, masking included", median(comparison.our_speeds), "tokens/s", plain_speed, name),
        Figure("speed in later epochs", median(comparison.later_speeds), "tokens/s", plain_speed, name),
        Figure("padding", padding(ours), "% of places", padding(plain), name),
        Figure("lost", lost(ours), "% of tokens", lost(plain), name),
    ]


def _config(options: argparse.Namespace) -> RunConfig:
    source = {"kind": "builtin"}
    if options.corpus is not None:
        source = {"kind": "jsonl" if ".jsonl" in options.corpus.name else "text", "path": str(options.corpus)}
    return RunConfig.from_mapping(
        {
            "data": {
                "sources": [source],
                "sequence_length": options.sequence_length,
                "microbatch_size": MICROBATCH_SIZE,
            },
            "tokenizer": {
                "path": None if options.tokenizer is None else str(options.tokenizer),
                "vocab_size": 8000,
            },
        }
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Tokens per second from text to masked batches.")
    parser.add_argument(
        "--corpus", type=Path, help="text or .jsonl file, may be gzipped (default: the built-in corpus)"
    )
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, may be gzipped (default: train one)")
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
