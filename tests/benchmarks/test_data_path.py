"""The data path's benchmark compares ways that do the same."""

from __future__ import annotations

import json

import pytest

from benchmarks.data.data_path import SPECIAL_PLACES, Plan, datasets_map, manyhands
from peer.config.run import RunConfig
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.encoding import Encoder
from peer.data.tokenization.tokenizers import load_tokenizer

DOCUMENTS = [" ".join(f"Sentence {n} of text {m} tells of cats and dogs." for n in range(m)) for m in range(1, 80)]
LENGTH, BATCH = 256, 8


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Some documents in a file, and a tokenizer of their words."""
    folder = tmp_path_factory.mktemp("data-path")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    source = {"kind": "jsonl", "path": str(corpus)}
    config = RunConfig.from_mapping(
        {
            "data": {"sources": [source], "sequence_length": LENGTH, "microbatch_size": BATCH},
            "tokenizer": {"vocab_size": 300},
        }
    )
    prepare_tokenizer(config, folder)
    return Plan(config, folder, len(Encoder(load_tokenizer(folder), "en").encode(DOCUMENTS).tokens))


def test_a_mapped_dataset_brings_nearly_all_of_the_text(plan: Plan) -> None:
    """Some of it is cut off, and some samples are padded."""
    [mapped] = datasets_map(plan)
    assert 0.9 * plan.tokens < mapped.tokens <= plan.tokens
    assert mapped.padding > 0


def test_our_passes_are_two_halves_and_another_epoch(plan: Plan) -> None:
    """Every place of each sample holds a token, and the first two passes together are all of the text but the rest."""
    first, second, later = manyhands(plan)
    assert (first.padding, second.padding, later.padding) == (0, 0, 0)
    assert first.tokens + second.tokens == later.tokens
    assert plan.tokens - 3 * BATCH * (LENGTH - SPECIAL_PLACES) < later.tokens <= plan.tokens
    assert all(outcome.seconds > 0 for outcome in (first, second, later))
