"""Scores of an n-gram model small enough to reckon by hand, and training by KenLM's own program."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from auth.errors import ConfigError
from peer.data.selection import kenlm as kenlm_scoring
from peer.data.selection.kenlm import KenlmScorer, train_kenlm, words_of
from tests.support.programs import require, require_kenlm
from tests.support.small_scorers import write_arpa


def test_the_perplexity_is_that_of_the_mean_word_with_line_ends(tmp_path: Path) -> None:
    """As CCNet and BERTIN reckon; empty lines do not count, and nothing scores infinite."""
    scorer = KenlmScorer(write_arpa(tmp_path / "model.arpa"), "raw")
    found = scorer.perplexities(["a b", "a\n\nb x", "", " \n "])
    one, two = -0.5 - 1.5 - 1.0, (-0.5 - 1.0) + (-1.5 - 2.0 - 1.0)
    np.testing.assert_allclose(found, [10 ** (-one / 3), 10 ** (-two / 5), math.inf, math.inf], rtol=1e-5)


def test_text_can_be_normalized_before(tmp_path: Path) -> None:
    """As our own models are trained on it."""
    assert words_of("Ａ b, ৭9।").split() == ["a", "b", ",", "00", "।"]
    path = write_arpa(tmp_path / "model.arpa")
    assert KenlmScorer(path, "words").perplexities(["A B"]) == KenlmScorer(path, "raw").perplexities(["a b"])


def test_words_are_normalized_alike_when_they_come_again() -> None:
    """Lines stay lines, very long words are not remembered, and the memory is bounded."""
    kenlm_scoring._remembered.cache_clear()
    text = "Ａ b, ৭9।\n\n" + "x" * 50 + "! কাজ-কর্ম"
    first = words_of(text)
    assert words_of(text) == first
    assert first.split("\n") == ["a b , 00 ।", "", "x" * 50 + " ! কাজ - কর্ম"]
    memory = kenlm_scoring._remembered.cache_info()
    assert (memory.currsize, memory.hits) == (4, 4)  # all words but the longest, each asked for twice
    assert memory.maxsize == kenlm_scoring.REMEMBERED_WORDS


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    """A file that is not there, and one of something else."""
    require_kenlm()
    with pytest.raises(ConfigError, match="There is no KenLM model at"):
        KenlmScorer(tmp_path / "none", "raw")
    (tmp_path / "text").write_text("A text.")
    with pytest.raises(ConfigError, match="is not a KenLM model"):
        KenlmScorer(tmp_path / "text", "raw")


def test_a_missing_program_is_named_with_the_ways_out(tmp_path: Path) -> None:
    """Whoever cannot build it has two other ways."""
    with pytest.raises(ConfigError, match=r"`lmplz-of-nobody`.* is not installed.*--kenlm.*--clean"):
        train_kenlm(["a"], tmp_path / "model.arpa", program="lmplz-of-nobody")


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    """Its last line stands in the sentence, and no log is left."""
    with pytest.raises(ConfigError, match="could not train a model"):
        train_kenlm(["a"], tmp_path / "model.arpa", program="false")
    assert list(tmp_path.iterdir()) == []


def test_a_trained_model_prefers_what_it_was_trained_on(tmp_path: Path) -> None:
    """And leaves nothing but itself."""
    require_kenlm()
    require("lmplz")
    texts = [f"the {noun} sees the {other} ." for noun in ("cat", "dog", "bird") for other in ("tree", "house")]
    train_kenlm(texts * 20, tmp_path / "model.arpa", order=3)
    good, bad = KenlmScorer(tmp_path / "model.arpa", "words").perplexities(["The cat sees the tree.", "Tree the the."])
    assert good < bad
    assert [path.name for path in tmp_path.iterdir()] == ["model.arpa"]
