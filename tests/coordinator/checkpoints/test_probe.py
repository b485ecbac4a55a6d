"""The probe: what a checkpoint's weights compute, checked with nothing but transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coordinator.checkpoints.probe import make_probe, make_probes, probe_loss
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.prepare import prepare_tokenizer
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from tests.support.small_run import small_config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A tiny run over a few sentences."""
    return small_config(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def tokenizer_dir(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer."""
    path = tmp_path_factory.mktemp("tokenizer")
    prepare_tokenizer(config, path)
    return path


@pytest.fixture(scope="module")
def probe(config: RunConfig, tokenizer_dir: Path) -> Batch:
    """The run's probe."""
    return make_probe(config, tokenizer_dir)


def test_probe_is_the_same_at_every_start(config: RunConfig, tokenizer_dir: Path, probe: Batch) -> None:
    """Losses of different checkpoints are comparable: the batch and its masks never change."""
    again = make_probe(config, tokenizer_dir)
    assert torch.equal(again.input_ids, probe.input_ids)
    assert torch.equal(again.label_positions, probe.label_positions)


def test_probe_restores_the_models_mode(config: RunConfig, tokenizer_dir: Path, probe: Batch) -> None:
    """A model in training mode is in training mode afterwards."""
    vocabulary = load_tokenizer(tokenizer_dir).get_vocab_size()
    model = build_model(config, vocabulary, load_special_ids(tokenizer_dir))
    probe_loss(model, probe, config)
    assert model.training


def test_each_phase_has_a_probe_of_its_length(config: RunConfig, tokenizer_dir: Path, probe: Batch) -> None:
    """One probe for each sequence length, and the first phase's is the one that a run without phases has."""
    phases = [{"from_step": 5, "sequence_length": 64}, {"from_step": 9, "sequence_length": 32}]
    probes = make_probes(RunConfig.from_mapping(config.model_dump() | {"phases": phases}), tokenizer_dir)
    assert {length: probe.input_ids.shape[1] for length, probe in probes.items()} == {64: 64, 32: 32}
    assert torch.equal(probes[32].input_ids, probe.input_ids)
