"""The trainer's benchmark compares things that compute the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks.training.trainer import Outcome, Plan, measure
from peer.config.run import RunConfig
from tests.support.tiny_families import VOCABULARY, family_config


def outcome(variant: str, family: str = "albert", **model: float) -> Outcome:
    """Run a variant over three microbatches of a tiny run."""
    raw = family_config(family, **model).model_dump(mode="json") | {"tokenizer": {"vocab_size": VOCABULARY}}
    return measure(Plan(variant, RunConfig.from_mapping(raw), microbatches=3, threads=torch.get_num_threads()))


@pytest.mark.parametrize(
    ("family", "dropout"),
    [("albert", 0.0), ("modernbert", 0.0), ("roberta", 0.1), ("gpt2", 0.0)],  # ALBERT's own forward draws it otherwise
)
def test_both_variants_have_equal_losses(family: str, dropout: float) -> None:
    """Worker and transformers see the same batches, model and dropout, and agree on each loss."""
    ours, theirs = (
        outcome(variant, family, hidden_dropout_prob=dropout).losses for variant in ("worker", "transformers")
    )
    assert len(ours) == len(theirs) == 3
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_speed_and_memory_are_measured() -> None:
    """Both figures are there and positive."""
    measured = outcome("worker")
    assert measured.samples_per_second > 0
    assert measured.peak_mib > 0
