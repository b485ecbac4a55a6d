"""Names of checkpoints' folders, known without a run: evaluating a checkpoint needs no database."""

from __future__ import annotations


def checkpoint_name(step: int) -> str:
    """The folder of a step's checkpoint."""
    return f"step-{step:08d}"
