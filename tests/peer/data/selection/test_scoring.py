"""A run file's scorer is opened, and unigram scores equal those reckoned by hand for a small tokenizer."""

from __future__ import annotations

import hashlib
import math
import tracemalloc
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models

from auth.errors import ConfigError
from peer.config.data import ScorerConfig
from peer.data.selection import scoring
from peer.data.selection.kenlm import KenlmScorer
from peer.data.selection.scoring import UNKNOWN_PENALTY, UnigramScorer, open_scorer
from peer.data.tokenization.tokenizers import read_tokenizer
from tests.support.small_scorers import write_arpa, write_unigram


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return read_tokenizer(write_unigram(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


def test_the_perplexity_is_that_of_the_mean_piece(tokenizer: Tokenizer) -> None:
    """Capital letters and the width of gaps are the tokenizer's affair; nothing scores infinite."""
    found = UnigramScorer(tokenizer).perplexities(["a b", "A\n\tab b", "", "  ", "x"])
    unknown = 6.0 + UNKNOWN_PENALTY
    expected = [1.5, (1 + (1 + 4) + 2) / 4, math.inf, math.inf, (6.0 + unknown) / 2]
    np.testing.assert_allclose(np.log(found), expected)


@given(documents=st.lists(st.text("abx আ\n", max_size=30), max_size=8), together=st.booleans())
def test_a_documents_score_is_its_own(tokenizer: Tokenizer, documents: list[str], together: bool) -> None:
    """Whatever was scored before it or is scored beside it, to the last bit."""
    scorer = UnigramScorer(tokenizer)
    if together:
        scorer.perplexities(documents[::-1])
    found = scorer.perplexities(documents)
    alone = [UnigramScorer(tokenizer).perplexities([document])[0] for document in documents]
    assert found.tolist() == alone


def test_memory_does_not_grow_with_the_number_of_documents(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are scored a slice at a time, and their scores are the same."""
    documents = ["a b " * (number % 9) for number in range(5000)]
    expected = UnigramScorer(tokenizer).perplexities(documents)
    monkeypatch.setattr(scoring, "SLICE_CHARACTERS", 1000)
    scorer = UnigramScorer(tokenizer)
    assert scorer.perplexities([]).tolist() == []
    tracemalloc.start()
    try:
        found = scorer.perplexities(documents)
        assert tracemalloc.get_traced_memory()[1] < 500_000  # all at once, it is several megabytes
    finally:
        tracemalloc.stop()
    assert found.tolist() == expected.tolist()


def test_a_tokenizer_without_probabilities_is_refused() -> None:
    """One sentence with the remedy."""
    with pytest.raises(ConfigError, match=r"BPE has no probabilities .* take a Unigram tokenizer, or a KenLM model"):
        UnigramScorer(Tokenizer(models.BPE()))


def test_the_runs_tokenizer_scores_where_no_model_is_named(tmp_path: Path) -> None:
    """Without either there is one sentence."""
    write_unigram(tmp_path / "tokenizer.json")
    assert isinstance(open_scorer(ScorerConfig(), tmp_path), UnigramScorer)
    with pytest.raises(ConfigError, match="Sampling needs a scorer"):
        open_scorer(ScorerConfig(), None)


def test_a_model_is_read_from_a_path_or_an_address(tmp_path: Path) -> None:
    """What is at an address is copied first."""
    arpa = write_arpa(tmp_path / "model.arpa")
    fsspec.filesystem("memory").pipe_file("/models/model.arpa", arpa.read_bytes())
    for model in (str(arpa), "memory://models/model.arpa"):
        scorer = open_scorer(ScorerConfig(kind="kenlm", model=model), None)
        assert isinstance(scorer, KenlmScorer)
        assert scorer.perplexities(["a b"])[0] > 1


def test_an_address_with_nothing_is_told() -> None:
    """The sentence names it."""
    with pytest.raises(ConfigError, match="Cannot fetch the scorer's model memory://nothing"):
        open_scorer(ScorerConfig(kind="kenlm", model="memory://nothing"), None)


def test_a_model_must_have_the_digest_that_the_run_gives(tmp_path: Path) -> None:
    """Another file is refused before any library reads it."""
    arpa = write_arpa(tmp_path / "model.arpa")
    right = hashlib.sha256(arpa.read_bytes()).hexdigest()
    assert isinstance(open_scorer(ScorerConfig(kind="kenlm", model=str(arpa), sha256=right), None), KenlmScorer)
    with pytest.raises(ConfigError, match="SHA-256 differs"):
        open_scorer(ScorerConfig(kind="kenlm", model=str(arpa), sha256="0" * 64), None)
