"""Which checkpoint is released, by a rule that the model card states. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from auth.errors import ConfigError
from coordinator.evaluate.results import score_text
from coordinator.evaluations import EvaluationRow
from coordinator.presence import CheckpointRow
from coordinator.validations import ValidationRow
from peer.config.evaluation import Task

HELD_OUT, NEWEST = "held-out-loss", "newest"


def choose(
    rule: str,
    checkpoints: Sequence[CheckpointRow],
    validations: Sequence[ValidationRow],
    evaluations: Sequence[EvaluationRow],
    tasks: Sequence[Task],
) -> tuple[CheckpointRow, str]:
    """The checkpoint and the sentence that says why, of those that are kept and may be published.

    `rule` is `held-out-loss`, `newest`, a step's number, or a task's name. Raises `ConfigError` if it chooses none.
    """
    kept = [row for row in checkpoints if not row.withheld]
    if not kept:
        raise ConfigError("There is no checkpoint that may be published.")
    if rule == NEWEST:
        newest = max(kept, key=lambda row: row.step)
        return newest, f"Released is the newest checkpoint, of step {newest.step}."
    if rule.isdigit():
        return _of_step(kept, int(rule))
    if rule == HELD_OUT:
        return _by_loss(kept, validations)
    for task in tasks:
        if task.name == rule:
            return _by_task(kept, evaluations, task)
    known = ", ".join([HELD_OUT, NEWEST, "a step's number", *(task.name for task in tasks)])
    raise ConfigError(f"`--rule` ({rule!r:.60}) must be one of: {known}.")


def _of_step(kept: Sequence[CheckpointRow], step: int) -> tuple[CheckpointRow, str]:
    for row in kept:
        if row.step == step:
            return row, f"Released is the checkpoint of step {step}, by the operator's choice."
    known = ", ".join(str(row.step) for row in kept)
    raise ConfigError(f"There is no checkpoint of step {step} that may be published; there are those of: {known}.")


def _by_loss(kept: Sequence[CheckpointRow], validations: Sequence[ValidationRow]) -> tuple[CheckpointRow, str]:
    """Of those only that were evaluated on the newest's samples: other losses cannot be compared."""
    newest = validations[-1].set_sha256 if validations else ""
    measured = {row.manifest_sha256: row.loss for row in validations if row.set_sha256 == newest}
    found = [(loss, row) for row in kept if (loss := measured.get(row.manifest_sha256)) is not None]
    if not found:
        raise ConfigError(
            "No checkpoint has a loss on held-out text: choose by another `--rule`, or wait for the validator."
        )
    loss, best = min(found, key=lambda pair: (pair[0], -pair[1].step))
    return best, (
        f"Released is the checkpoint with the lowest loss on held-out text ({loss:.4f}, step {best.step}), "
        f"of {len(found)} that are kept."
    )


def _by_task(
    kept: Sequence[CheckpointRow], evaluations: Sequence[EvaluationRow], task: Task
) -> tuple[CheckpointRow, str]:
    results = {
        row.manifest_sha256: row.result
        for row in evaluations
        if row.result.task == task.name and row.result.task_sha256 == task.sha256
    }
    sign = 1.0 if task.higher_is_better else -1.0
    found = [
        (sign * mean, row, result)
        for row in kept
        if (result := results.get(row.manifest_sha256)) is not None and (mean := result.mean()) is not None
    ]
    if not found:
        raise ConfigError(
            f"No checkpoint that is kept has a score on the task `{task.name}`: let the evaluator run first."
        )
    _, best, result = max(found, key=lambda each: (each[0], each[1].step))
    return best, (
        f"Released is the checkpoint with the best mean {task.main_metric} on the task {task.name} "
        f"({score_text(result)}, step {best.step}), of {len(found)} that are kept."
    )
