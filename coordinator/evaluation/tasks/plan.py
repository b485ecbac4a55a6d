"""Work on a checkpoint: one task to evaluate, or an export. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.evaluation.tasks.data import DataFolders
from peer.config.evaluation import Task


@dataclass(frozen=True)
class Plan:
    """One task to run on one checkpoint."""

    checkpoint: str  # a folder, or a model's name on the hub
    task: Task
    data: DataFolders
    random_start: bool = False  # the checkpoint's architecture with random weights
    save_to: str = ""  # folder for the best fine-tuned model; "": not saved
    threads: int = 0  # of the computing process; 0: PyTorch's default

    @property
    def title(self) -> str:
        """The name of the work, for messages."""
        return f"evaluation of `{self.task.name}`"


@dataclass(frozen=True)
class EmbedderPlan:
    """A checkpoint to save as a model of sentence-transformers."""

    checkpoint: str  # a folder
    folder: str  # to write to; must be empty
    length: int  # largest number of tokens in a text
    title: ClassVar[str] = "export of sentence embeddings"
