"""What the benchmark of corpus sampling compares is the same work."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corpus_sampling import made_up_documents, sample, score_naively, write_arpa
from peer.config.data import ScorerConfig
from peer.data.corpus.sampling import sources_of, train_scorer
from peer.data.selection.scoring import open_scorer
from tests.support.programs import require_kenlm


def test_both_ways_find_the_same_perplexities_and_the_path_keeps_its_share(tmp_path: Path) -> None:
    """On the made-up documents, the same for the same generator."""
    documents = list(made_up_documents(1_500, np.random.default_rng(0)))
    assert len(documents) == 1_500
    assert documents[:3] == list(made_up_documents(1_500, np.random.default_rng(0)))[:3]
    assert {len(text.split()) for text in documents} == {100}
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    train_scorer(documents, sources_of([str(corpus)], "text"), tmp_path / "scorer.json")
    config = ScorerConfig(model=str(tmp_path / "scorer.json"))
    scorer = open_scorer(config, None)
    np.testing.assert_allclose(
        scorer.perplexities(documents[:50]), score_naively(tmp_path / "scorer.json", documents[:50])
    )
    assert sample(corpus, scorer, config, tmp_path) == pytest.approx(150, abs=45)


def test_the_made_up_model_tells_documents_apart(tmp_path: Path) -> None:
    """A model that finds all alike would look up no context, and leave nothing to sample by."""
    require_kenlm()
    documents = list(made_up_documents(400, np.random.default_rng(0)))
    write_arpa(documents[:200], tmp_path / "model.arpa")
    scorer = open_scorer(ScorerConfig(kind="kenlm", model=str(tmp_path / "model.arpa")), None)
    known, new = scorer.perplexities(documents[:200]), scorer.perplexities(documents[200:])
    assert len(np.unique(new)) > 190
    assert np.median(known) < np.median(new) < math.inf
