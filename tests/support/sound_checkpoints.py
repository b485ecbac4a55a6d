"""Checkpoints that are what they say: with the run's own probe, and the loss that these weights give on it."""

from __future__ import annotations

import json
from pathlib import Path

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.probe import make_probe, probe_loss, probe_tensors
from coordinator.checkpoints.writing import take_snapshot, write_checkpoint
from coordinator.ledger.presence import record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from peer.models.build import checkpoint_config
from peer.models.optimizers import build_optimizer, parameter_groups
from tests.support.small_checkpoints import run_model


def add_sound_checkpoint(
    run: RunDirectory, database: Database, step: int, said: float | None = None
) -> StoredCheckpoint:
    """Write and record a checkpoint, of other weights for each step; `said`: the loss that its manifest claims."""
    model = run_model(run, step)
    probe = make_probe(run.config, run.tokenizer_dir)
    stored = write_checkpoint(
        run.checkpoints_dir,
        take_snapshot(step, model, build_optimizer(run.config, parameter_groups(model, run.config))),
        run=run.config.run.name,
        era=0,
        texts={"config.json": json.dumps(checkpoint_config(model)), "run.yaml": run.config.to_yaml()},
        tokenizer_dir=run.tokenizer_dir,
        probe=probe_tensors(probe, run.config),
        probe_loss=probe_loss(model, probe, run.config) if said is None else said,
        created_at=0.0,
    )
    record(database, stored)
    return stored


def record(database: Database, stored: StoredCheckpoint, withheld: str = "") -> None:
    """As the keeper does."""
    record_checkpoint(
        database,
        step=stored.manifest.step,
        size_bytes=stored.size_bytes,
        manifest_sha256=stored.manifest_sha256,
        now=0.0,
        withheld=withheld,
    )


def publish_to(run_dir: Path, *places: dict[str, object]) -> None:
    """Add places to a run's settings."""
    path = run_dir / "settings.yaml"
    lines = path.read_text()
    path.write_text(lines.replace("publications: []\n", "") + "publications: " + json.dumps(places) + "\n")
