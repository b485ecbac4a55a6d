"""The plan for a process that computes: one task on one checkpoint, or its export for sentence-transformers."""

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

    @property
    def title(self) -> str:
        """Return the name of the work, for messages."""
        return f"evaluation of `{self.task.name}`"


@dataclass(frozen=True)
class EmbedderPlan:
    """A checkpoint to save as a model of sentence-transformers."""

    checkpoint: str  # a folder
    folder: str  # empty
    length: int  # largest number of tokens in a text

    @property
    def title(self) -> str:
        """Return the name of the work, for messages."""
        return "export of sentence embeddings"
