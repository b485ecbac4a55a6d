"""Names of checkpoints' folders, in a module without a database: evaluation imports it."""

from __future__ import annotations


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"
