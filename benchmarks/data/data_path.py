"""Tokens per second from a file of documents to masked batches, on one core and on two, against two other ways.

"sentence by sentence" is the plain algorithm: it tokenizes each sentence once to count its tokens and once more to
build the pair, cuts off what is too long and pads what is too short. "datasets.map" does the same steps in batches on a
streamed dataset, as is usual today. Each way runs in a process of its own that is held to the cores. By default all
read the built-in corpus with a tokenizer trained on it:

    python benchmarks/data/data_path.py [--quick] [--json] [--preset PRESET]
    python benchmarks/data/data_path.py --corpus corpus.jsonl.gz --language bn --tokenizer tokenizer.json.gz
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from benchmarks.data.data_path_variant import VARIANTS, Outcome, Plan, environment
from benchmarks.support.reporting import Figure, argument_parser, report
from peer.config.run import RunConfig
from peer.config.tokenizer import PRESETS
from peer.data.prepare import prepare_tokenizer
from peer.data.sources.documents import sample_documents
from peer.data.tokenization.encoding import Encoder
from peer.data.tokenization.tokenizers import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
CORES = {"one core": 1, "two cores": 2}
MICROBATCH_SIZE = 32
ROUNDS = 5
QUICK_ROUNDS = 3
QUICK_CHARACTERS = 1_000_000
Outcomes = dict[str, list[list[Outcome]]]  # of each way: the passes of each round


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all ways, turn about, so that a change in the machine's load meets them alike; report the medians."""
    options = _parse(arguments)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        plan = _prepare(options, Path(folder))
        for name, cores in CORES.items():
            if cores <= len(os.sched_getaffinity(0)):
                outcomes = _measure(replace(plan, cores=cores), rounds)
                figures += _speeds(name, outcomes)
    report("data path", [*figures, *_waste(outcomes, plan.tokens)], options.json)


def _prepare(options: argparse.Namespace, folder: Path) -> Plan:
    """The documents as a file of JSON lines, the tokenizer's folder, and how many tokens there are."""
    config = _config(options, None)
    documents = list(sample_documents(config, limit=10**9))
    if options.quick:
        documents = list(_first_characters(documents, QUICK_CHARACTERS))
    prepare_tokenizer(config, folder / "tokenizer")
    tokens = len(Encoder(load_tokenizer(folder / "tokenizer"), config.run.language).encode(documents).tokens)
    corpus = folder / "corpus.jsonl"
    with corpus.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents)
    return Plan("", _config(options, corpus).to_json(), str(folder / "tokenizer"), tokens, 1)


def _measure(plan: Plan, rounds: int) -> Outcomes:
    """One way after the other, again and again; before that all once for nothing, to have everything loaded."""
    with ExitStack() as stack:
        processes = {variant: stack.enter_context(_Process(replace(plan, variant=variant))) for variant in VARIANTS}
        measured = [{variant: process.measure() for variant, process in processes.items()} for _ in range(1 + rounds)]
    return {variant: [outcomes[variant] for outcomes in measured[1:]] for variant in VARIANTS}


class _Process:
    """One way, in a process that has as many cores and threads as it shall have."""

    def __init__(self, plan: Plan) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "benchmarks.data.data_path_variant", json.dumps(asdict(plan))],
            cwd=ROOT,
            env={**os.environ, **environment(plan.cores)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self) -> list[Outcome]:
        """Each pass over the documents, beginning with nothing remembered."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return [Outcome(**outcome) for outcome in json.loads(self._process.stdout.readline())]

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _speeds(cores: str, outcomes: Outcomes) -> Iterator[Figure]:
    """The medians of our speeds beside the medians of the others'."""
    ours = outcomes["manyhands"]
    speeds = {
        "first epoch": median(_speed(halves) for *halves, _ in ours),
        "its second half": median(_speed([half]) for _, half, _ in ours),
        "later epochs": median(_speed([later]) for *_, later in ours),
    }
    for variant, passes in outcomes.items():
        if variant != "manyhands":
            theirs = median(map(_speed, passes))
            yield from (
                Figure(f"{cores}: {name}", speed, "tokens/s", theirs, variant) for name, speed in speeds.items()
            )


def _speed(outcomes: Sequence[Outcome]) -> float:
    """Tokens/s of several passes together."""
    return sum(outcome.tokens for outcome in outcomes) / sum(outcome.seconds for outcome in outcomes)


def _waste(outcomes: Outcomes, tokens: int) -> Iterator[Figure]:
    """Of one pass, as all are alike."""
    ours, plain = outcomes["manyhands"][0][0], outcomes["sentence by sentence"][0][0]
    padding = [100 * outcome.padding / outcome.places for outcome in (ours, plain)]
    yield Figure("padding", padding[0], "% of places", padding[1], "sentence by sentence")
    yield Figure("sentence by sentence: cut off", 100 * (tokens - plain.tokens) / tokens, "% of tokens")


def _config(options: argparse.Namespace, corpus: Path | None) -> RunConfig:
    """The run, on the corpus that the options name or on the file that was made of it."""
    path = options.corpus if corpus is None else corpus
    source = {"kind": "builtin"}
    if path is not None:
        source = {"kind": "jsonl" if ".jsonl" in path.name else "text", "path": str(path)}
    return RunConfig.from_mapping(
        {
            "run": {"language": options.language},
            "data": {
                "sources": [source],
                "sequence_length": options.sequence_length,
                "microbatch_size": MICROBATCH_SIZE,
            },
            "tokenizer": {
                "path": None if options.tokenizer is None else str(options.tokenizer),
                "preset": options.preset,
                "vocab_size": 8000,
            },
        }
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Tokens per second from a file of documents to masked batches.")
    parser.add_argument(
        "--corpus", type=Path, help="text or .jsonl file, may be gzipped (default: the built-in corpus)"
    )
    parser.add_argument("--language", default="en", help="its language (default: en)")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, may be gzipped (default: train one)")
    parser.add_argument("--preset", choices=PRESETS, default="albert", help="of the tokenizer to train")
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
