"""How much memory it takes to train a tokenizer, beside the size of the text that it is trained on.

The text is made up as it is read: words by Zipf's law without end, so that new ones keep coming as they do on the web
(2.7 million in a gigabyte). Each algorithm trains in a process of its own, whose peak is read from Linux.

    python benchmarks/tokenizer_training.py [--quick] [--json]
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.reporting import Figure, argument_parser, report
from peer.config.run import RunConfig
from peer.data.tokenization.training import train_tokenizer

MB = 1_000_000
QUICK_MB, FULL_MB = 10, 300
KINDS = (
    ("albert", "unigram"),
    ("byte-level", "bpe"),
    ("multilingual-cased", "wordpiece"),
    ("albert", "sentencepiece"),
)
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
EXPONENT = 1.3
SENTENCE, DOCUMENT, BLOCK = 20, 400, 20_000  # words


def main() -> None:
    """Train a vocabulary of 32 000 by each algorithm, and report its peak beside the text."""
    options = argument_parser("The memory that training a tokenizer takes.").parse_args()
    size_mb = QUICK_MB if options.quick else FULL_MB
    context = multiprocessing.get_context("spawn")
    figures = []
    for preset, algorithm in KINDS:
        with context.Pool(1) as pool:
            peak = pool.apply(peak_growth_mb, (preset, algorithm, size_mb))
        figures.append(Figure(f"{algorithm} ({preset}), peak", peak, "MB", size_mb, "MB of text"))
    report("Training a tokenizer", figures, options.json)


def peak_growth_mb(preset: str, algorithm: str, size_mb: int) -> float:
    """How far this process grows while it trains."""
    config = RunConfig.from_mapping({"tokenizer": {"preset": preset, "algorithm": algorithm}})
    before = _memory_mb("VmRSS")
    train_tokenizer(config, made_up_documents(size_mb * MB, np.random.default_rng(0)))
    return _memory_mb("VmHWM") - before


def made_up_documents(characters: int, rng: np.random.Generator) -> Iterator[str]:
    """Documents until they have so many characters."""
    while characters > 0:
        numbers: list[int] = (rng.zipf(EXPONENT, BLOCK) % 2**40 + len(LETTERS)).tolist()
        words = list(map(_word, numbers))
        for start in range(0, BLOCK, DOCUMENT):
            sentences = (words[place : place + SENTENCE] for place in range(start, start + DOCUMENT, SENTENCE))
            document = " ".join(" ".join(sentence).capitalize() + "." for sentence in sentences)
            characters -= len(document)
            yield document


def _word(number: int) -> str:
    """The number in the alphabet's digits: the more frequent, the shorter."""
    letters = ""
    while number:
        number, digit = divmod(number, len(LETTERS))
        letters += LETTERS[digit]
    return letters


def _memory_mb(entry: str) -> float:
    """VmRSS (now) or VmHWM (at most so far) of this process, from Linux."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{entry}:\s*(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024 / MB


if __name__ == "__main__":
    main()
