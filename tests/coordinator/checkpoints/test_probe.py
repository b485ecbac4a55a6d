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

CONFIG = RunConfig.from_mapping(
    {
        "model": {
            "embedding_size": 16,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
        },
        "tokenizer": {"vocab_size": 400, "max_training_documents": 100},
        "data": {"sequence_length": 64},
    }
)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer, trained on some of the built-in corpus."""
    path = tmp_path_factory.mktemp("tokenizer")
    prepare_tokenizer(CONFIG, path)
    return path


@pytest.fixture(scope="module")
def probe(tokenizer_dir: Path) -> Batch:
    """The run's probe."""
    return make_probe(CONFIG, tokenizer_dir)


def test_probe_is_the_same_at_every_start(tokenizer_dir: Path, probe: Batch) -> None:
    """Losses of different checkpoints are comparable: the batch and its masks never change."""
    again = make_probe(CONFIG, tokenizer_dir)
    assert torch.equal(again.input_ids, probe.input_ids)
    assert torch.equal(again.label_positions, probe.label_positions)


def test_probe_restores_the_models_mode(tokenizer_dir: Path, probe: Batch) -> None:
    """A model in training mode is in training mode afterwards."""
    vocabulary = load_tokenizer(tokenizer_dir).get_vocab_size()
    model = build_model(CONFIG, vocabulary, load_special_ids(tokenizer_dir))
    probe_loss(model, probe, CONFIG)
    assert model.training


def test_each_phase_has_a_probe_of_its_length(tokenizer_dir: Path) -> None:
    """One probe for each sequence length, and the first phase's is the one that a run without phases has."""
    phases = [{"from_step": 5, "sequence_length": 32}, {"from_step": 9, "sequence_length": 64}]
    config = RunConfig.from_mapping(CONFIG.model_dump() | {"phases": phases})
    probes = make_probes(config, tokenizer_dir)
    assert {length: probe.input_ids.shape[1] for length, probe in probes.items()} == {64: 64, 32: 32}
    assert torch.equal(probes[64].input_ids, make_probe(CONFIG, tokenizer_dir).input_ids)
