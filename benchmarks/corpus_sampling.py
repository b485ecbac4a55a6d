"""Documents a second through corpus sampling: the command's whole path, the scorer alone, and the obvious way.

Made-up documents of a hundred words by Zipf's law in a file of JSON Lines. The whole path reads them twice, scores,
decides and writes, as `manyhands corpus sample` does; the obvious way encodes each document with the tokenizer and adds
its pieces' probabilities up. Each figure has a scorer of its own that has seen nothing. KenLM's model has
the bigrams of other documents of the kind, so that it looks up contexts and tells documents apart; a model of longer
n-grams is several times slower, and the path keeps up with it more easily.

    python benchmarks/corpus_sampling.py [--quick] [--json]
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.reporting import Figure, argument_parser, report
from peer.config.data import Method, ScorerConfig
from peer.data.corpus.sampling import (
    BLOCK,
    Target,
    open_writer,
    plan,
    read_blocks,
    sources_of,
    survey,
    train_scorer,
    write_kept,
)
from peer.data.selection.scoring import Scorer, open_scorer

QUICK_DOCUMENTS, FULL_DOCUMENTS = 20_000, 300_000
NAIVE_DOCUMENTS = 3_000
SCORER_DOCUMENTS, MODEL_DOCUMENTS = 3_000, 10_000
WORDS, EXPONENT = 100, 1.4
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
SEED, SHARE = 0, 0.1


def main() -> None:
    """Measure, in this order: scorers alone, the whole path with each, the obvious way."""
    options = argument_parser("Documents a second through corpus sampling.").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report("Sampling a corpus", measure(Path(folder), options.quick), options.json)


def measure(folder: Path, quick: bool) -> list[Figure]:
    """All figures."""
    count = QUICK_DOCUMENTS if quick else FULL_DOCUMENTS
    documents = list(made_up_documents(count, np.random.default_rng(SEED)))
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    train_scorer(documents[:SCORER_DOCUMENTS], sources_of([str(corpus)], "text"), folder / "scorer.json")
    model = folder / "model.arpa"
    write_arpa(list(made_up_documents(MODEL_DOCUMENTS, np.random.default_rng(SEED + 1))), model)
    naive = per_second(NAIVE_DOCUMENTS, lambda: score_naively(folder / "scorer.json", documents[:NAIVE_DOCUMENTS]))
    package = per_second(count, lambda: score_by_package(model, documents))
    figures = []
    for name, config, baseline, baseline_name in (
        ("unigram", ScorerConfig(model=str(folder / "scorer.json")), naive, "tokenizer, obvious way"),
        ("KenLM, raw", ScorerConfig(kind="kenlm", model=str(model)), package, "kenlm's own calls"),
        ("KenLM, words", ScorerConfig(kind="kenlm", model=str(model), text="words"), package, "kenlm's own calls"),
    ):
        alone, whole = open_scorer(config, None), open_scorer(config, None)
        alone_rate = per_second(count, partial(score_all, alone, documents))
        whole_rate = per_second(count, partial(sample, corpus, whole, config, folder))
        figures.append(Figure(f"{name}, scorer alone", alone_rate, "documents/s", baseline, baseline_name))
        figures.append(Figure(f"{name}, whole path", whole_rate, "documents/s", alone_rate, "its scorer alone"))
    return figures


def sample(corpus: Path, scorer: Scorer, config: ScorerConfig, folder: Path, method: Method = "gaussian") -> int:
    """What the command does with a scorer; returns how many documents it kept."""
    blocks = sources_of([str(corpus)], "text")
    found = survey(read_blocks(blocks), "none", 5_000, np.random.default_rng(SEED))
    sampling, tally = plan(found, scorer, config, method, Target(share=SHARE), None, None)
    with open_writer(folder, "zst") as writer:
        write_kept(read_blocks(blocks), found, scorer, sampling, tally, writer)
    return tally.kept


def score_all(scorer: Scorer, documents: Sequence[str]) -> None:
    """In the command's blocks."""
    for start in range(0, len(documents), BLOCK):
        scorer.perplexities(documents[start : start + BLOCK])


def score_naively(tokenizer_file: Path, documents: Sequence[str]) -> list[float]:
    """The obvious way: one document after another, one piece after another."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    scores = [score for _, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    perplexities = []
    for document in documents:
        ids = tokenizer.encode(document, add_special_tokens=False).ids
        perplexities.append(math.exp(-sum(scores[number] for number in ids) / len(ids)))
    return perplexities


def per_second(count: int, work: Callable[[], object]) -> float:
    """Documents a second, once."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def made_up_documents(count: int, rng: np.random.Generator) -> Iterator[str]:
    """Documents of `WORDS` words."""
    for _ in range(-(-count // BLOCK)):
        words = [_word(number) for number in (rng.zipf(EXPONENT, BLOCK * WORDS) % 2**24 + len(LETTERS)).tolist()]
        for start in range(0, min(count, BLOCK) * WORDS, WORDS):
            yield " ".join(words[start : start + WORDS])
        count -= BLOCK


def score_by_package(model: Path, documents: Sequence[str]) -> None:
    """What KenLM's package takes at least."""
    import kenlm

    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    score = kenlm.Model(str(model), config).score
    for document in documents:
        score(document)


def write_arpa(documents: Sequence[str], path: Path) -> None:
    """A bigram model of the documents: relative frequencies, a tenth kept back for what did not come."""
    sentences = [["<s>", *text.split(), "</s>"] for text in documents]
    words = Counter(word for sentence in sentences for word in sentence)
    pairs = Counter(pair for sentence in sentences for pair in pairwise(sentence))
    total = sum(words.values())
    unigrams = [f"{math.log10(0.9 * count / total):.4f}\t{word}\t-1.0" for word, count in words.items()]
    bigrams = [f"{math.log10(0.9 * n / words[one]):.4f}\t{one} {two}" for (one, two), n in pairs.items()]
    path.write_text(
        f"\\data\\\nngram 1={len(unigrams) + 1}\nngram 2={len(bigrams)}\n\n\\1-grams:\n-6.0\t<unk>\t0\n"
        + "\n".join(unigrams)
        + "\n\n\\2-grams:\n"
        + "\n".join(bigrams)
        + "\n\n\\end\\\n",
        encoding="utf-8",
    )


def _word(number: int) -> str:
    """The number in the alphabet's digits: the more frequent, the shorter."""
    letters = ""
    while number:
        number, digit = divmod(number, len(LETTERS))
        letters += LETTERS[digit]
    return letters


if __name__ == "__main__":
    main()
