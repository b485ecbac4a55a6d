"""Names of checkpoint folders, in a module that evaluation can import without a database."""

from __future__ import annotations


def checkpoint_name(step: int) -> str:
    """Return the name of the folder for the checkpoint of a step."""
    return f"step-{step:08d}"
