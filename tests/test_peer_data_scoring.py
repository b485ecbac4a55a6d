"""Opening a scorer from what a run file says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import fsspec
import pytest

from auth.errors import ConfigError
from peer.config.sampling import Scorer
from peer.data.kenlm_scoring import KenlmScorer
from peer.data.scoring import open_scorer
from peer.data.unigram_scoring import UnigramScorer
from tests.support.small_scorers import write_arpa, write_unigram


def test_the_runs_tokenizer_scores_where_no_model_is_named(tmp_path: Path) -> None:
    """Without either there is one sentence."""
    write_unigram(tmp_path / "tokenizer.json")
    assert isinstance(open_scorer(Scorer(), tmp_path), UnigramScorer)
    with pytest.raises(ConfigError, match="Sampling needs a scorer"):
        open_scorer(Scorer(), None)


def test_a_model_is_read_from_a_path_or_an_address(tmp_path: Path) -> None:
    """What is at an address is copied first."""
    arpa = write_arpa(tmp_path / "model.arpa")
    fsspec.filesystem("memory").pipe_file("/models/model.arpa", arpa.read_bytes())
    for model in (str(arpa), "memory://models/model.arpa"):
        scorer = open_scorer(Scorer(kind="kenlm", model=model), None)
        assert isinstance(scorer, KenlmScorer)
        assert scorer.perplexities(["a b"])[0] > 1


def test_an_address_with_nothing_is_told() -> None:
    """The sentence names it."""
    with pytest.raises(ConfigError, match="Cannot fetch the scorer's model memory://nothing"):
        open_scorer(Scorer(kind="kenlm", model="memory://nothing"), None)


def test_a_model_must_have_the_digest_that_the_run_gives(tmp_path: Path) -> None:
    """Another file is refused before any library reads it."""
    arpa = write_arpa(tmp_path / "model.arpa")
    right = hashlib.sha256(arpa.read_bytes()).hexdigest()
    assert isinstance(open_scorer(Scorer(kind="kenlm", model=str(arpa), sha256=right), None), KenlmScorer)
    with pytest.raises(ConfigError, match="SHA-256 differs"):
        open_scorer(Scorer(kind="kenlm", model=str(arpa), sha256="0" * 64), None)
