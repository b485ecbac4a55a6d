"""Checkpoints that are what they say: with the run's own probe, and the loss that these weights give on it."""

from __future__ import annotations

import json
from pathlib import Path

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.probe import make_probe, probe_loss, probe_tensors
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from tests.support.small_checkpoints import add_checkpoint, run_model


def add_sound_checkpoint(
    run: RunDirectory, database: Database, step: int, said: float | None = None
) -> StoredCheckpoint:
    """Write and record a checkpoint, of other weights for each step; `said`: the loss that its manifest claims."""
    model = run_model(run, step)
    probe = make_probe(run.config, run.tokenizer_dir)
    loss = probe_loss(model, probe, run.config) if said is None else said
    tensors = probe_tensors(probe, run.config)
    return add_checkpoint(run, database, step, model=model, probe=tensors, probe_loss=loss)


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
