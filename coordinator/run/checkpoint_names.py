"""Names of checkpoint folders; evaluation can import this module without a database."""

from __future__ import annotations


def checkpoint_name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:08d}"
