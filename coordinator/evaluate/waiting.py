"""What waits for an evaluator: which task on which checkpoint comes next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from peer.config.evaluation import Task


@dataclass(frozen=True)
class Known:
    """What a run has published, and what is known of it."""

    checkpoints: Sequence[tuple[int, str]]  # step and manifest's digest, the newest first
    done: Collection[tuple[str, str, str]]  # manifest, task, the task's digest


@dataclass(frozen=True)
class Waiting:
    """A task on a checkpoint."""

    step: int
    manifest_sha256: str
    task: Task


def next_waiting(tasks: Sequence[Task], known: Known, passed_over: Collection[tuple[str, str]]) -> Waiting | None:
    """Of the newest checkpoint that lacks one, the first task; None if nothing waits.

    `passed_over`: manifest and task's digest of what cannot be evaluated.
    """
    for step, manifest in known.checkpoints:
        for task in tasks:
            is_done = (manifest, task.name, task.sha256) in known.done
            if not is_done and (manifest, task.sha256) not in passed_over:
                return Waiting(step, manifest, task)
    return None
