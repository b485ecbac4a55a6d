"""Plans for the worker process (a task to run or a model to export), which do not need torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.evaluation.tasks.data import DataFolders
from peer.config.evaluation import Task


@dataclass(frozen=True)
class Plan:
    """A task to run on a checkpoint."""

    checkpoint: str  # folder, or name of a Hub model
    task: Task
    data: DataFolders
    random_start: bool = False  # evaluate random weights in the checkpoint's architecture
    save_to: str = ""  # folder in which to save the best fine-tuned model; "" to save none
    threads: int = 0  # number of the worker's CPU threads; 0 for PyTorch's default

    @property
    def title(self) -> str:
        """The name of the evaluation in log and error messages."""
        return f"evaluation of `{self.task.name}`"


@dataclass(frozen=True)
class EmbedderPlan:
    """A checkpoint to export as a sentence-transformers model."""

    checkpoint: str  # source folder
    folder: str  # target folder, which must be empty
    length: int  # maximum number of tokens in a text
    title: ClassVar[str] = "export of sentence embeddings"
