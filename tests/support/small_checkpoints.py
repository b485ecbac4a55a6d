"""Real checkpoints of a small run without a swarm: as the keeper writes and records them, with weights of any value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

import torch
from transformers import PreTrainedModel

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.writing import take_snapshot, write_checkpoint
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from coordinator.store.eras import current_era
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model, checkpoint_config
from peer.models.optimizer_setup import build_optimizer, parameter_groups


def run_model(run: RunDirectory, seed: int) -> PreTrainedModel:
    """The run's model with other weights for each seed."""
    vocabulary = load_tokenizer(run.tokenizer_dir).get_vocab_size()
    model = build_model(run.config, vocabulary, load_special_ids(run.tokenizer_dir))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def add_checkpoint(
    run: RunDirectory,
    database: Database,
    step: int,
    seed: int = 0,
    model: PreTrainedModel | None = None,
    probe: Mapping[str, torch.Tensor] = MappingProxyType({}),
    probe_loss: float | None = None,
) -> StoredCheckpoint:
    """Write a checkpoint of `step`, of this model or one with the seed's weights, and record it."""
    model = model or run_model(run, seed)
    with database() as session:
        era = current_era(session)
    stored = write_checkpoint(
        run.checkpoints_dir,
        take_snapshot(step, model, build_optimizer(run.config, parameter_groups(model, run.config))),
        run=run.config.run.name,
        era=era,
        texts={"config.json": json.dumps(checkpoint_config(model)), "run.yaml": run.config.to_yaml()},
        tokenizer_dir=run.tokenizer_dir,
        probe=probe,
        probe_loss=probe_loss,
        created_at=0.0,
    )
    record_checkpoint(
        database, step=step, size_bytes=stored.size_bytes, manifest_sha256=stored.manifest_sha256, now=0.0
    )
    return stored
