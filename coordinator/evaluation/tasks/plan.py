"""The plan for a process that computes: one task on one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from peer.config.evaluation import Task


@dataclass(frozen=True)
class Plan:
    """One task on one checkpoint."""

    checkpoint: str  # a folder, or a model's name on the hub
    task: Task
    base: str  # where relative paths of the task begin
    cache: str  # where files of the web are kept
    random_start: bool = False  # the checkpoint's shape with fresh weights
    save_to: str = ""  # a folder for the best fine-tuned model; "": none is kept
    confined: bool = False  # the task's paths are somebody else's: they must stay within `base`
    threads: int = 0  # of the computing process; 0: as many as PyTorch takes
