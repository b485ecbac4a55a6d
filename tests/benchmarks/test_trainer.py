"""The trainer's benchmark compares things that compute the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks._trainer_variant import VARIANTS, Outcome, Plan, measure
from tests.support.tiny_albert import VOCABULARY, tiny_config


def outcome(variant: str) -> Outcome:
    """What the variant gives for three microbatches of the tiny run."""
    config = tiny_config().to_json()
    return measure(Plan(variant, config, VOCABULARY, microbatches=3, threads=torch.get_num_threads()))


def test_all_variants_have_equal_losses() -> None:
    """Worker, plain loop and transformers see the same batches and the same model, and agree on each loss."""
    losses = [outcome(variant).losses for variant in VARIANTS]
    assert all(len(of_one) == 3 for of_one in losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)


def test_speed_and_memory_are_measured() -> None:
    """Both figures are there and positive."""
    measured = outcome("worker")
    assert measured.samples_per_second > 0
    assert measured.peak_mib > 0
