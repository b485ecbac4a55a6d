"""Processes that write and publish checkpoints until they are killed."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from coordinator.checkpoints.manifest import (
    StoredCheckpoint,
    newest_verified,
    remove_leftovers,
    remove_steps,
    stored_steps,
)
from coordinator.checkpoints.writing import StateSnapshot, write_checkpoint
from coordinator.publishing import publisher as publisher_module
from coordinator.publishing.publisher import open_publisher
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from tests.support.sound_checkpoints import record

KEEP = 2


def write_for_ever(run_dir: str, written: str) -> None:
    """Go on from the newest verified checkpoint; `written` is told of each step whose checkpoint is complete."""
    run = RunDirectory(Path(run_dir))
    remove_leftovers(run.checkpoints_dir)
    newest = newest_verified(run.checkpoints_dir)
    step = 0 if newest is None else newest.manifest.step
    while True:
        step += 1
        _write(run, step)
        with Path(written).open("a") as file:
            file.write(f"{step}\n")
        remove_steps(run.checkpoints_dir, stored_steps(run.checkpoints_dir)[:-KEEP])


def write_and_publish_for_ever(run_dir: str, written: str) -> None:
    """The same, and each checkpoint is recorded and published; `written` is told when it is."""
    run = RunDirectory(Path(run_dir))
    remove_leftovers(run.checkpoints_dir)
    database = Database(open_engine(run.database_url))
    publisher_module.check_loads = lambda _folder: 0.0  # takes seconds, and is not what is killed here
    publisher = open_publisher(run.path)
    newest = newest_verified(run.checkpoints_dir)
    step = 0 if newest is None else newest.manifest.step
    while True:
        step += 1
        record(database, _write(run, step))
        if not publisher.publish_pending():
            os._exit(3)  # nothing stands in its way here
        with Path(written).open("a") as file:
            file.write(f"{step}\n")
        remove_steps(run.checkpoints_dir, stored_steps(run.checkpoints_dir)[:-KEEP])


def _write(run: RunDirectory, step: int) -> StoredCheckpoint:
    tensors = {f"layer.{number}": torch.full((64, 256), float(step)) for number in range(4)}
    return write_checkpoint(
        run.checkpoints_dir,
        StateSnapshot(step, tensors, {f"{name}/exp_avg": tensor for name, tensor in tensors.items()}),
        run="small",
        era=0,
        texts={"config.json": "{}", "run.yaml": run.config.to_yaml()},
        tokenizer_dir=run.tokenizer_dir,
        probe={"input_ids": torch.zeros(1, 2, dtype=torch.int64)},
        probe_loss=1.0,
        created_at=0.0,
    )
