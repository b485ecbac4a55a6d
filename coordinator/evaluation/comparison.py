"""Several checkpoints on the same tasks with the same recipe: a table for the terminal, Markdown, or scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.evaluation.tasks.results import TaskResult, score_text


@dataclass(frozen=True)
class Contestant:
    """One checkpoint's results, by task."""

    name: str
    results: Mapping[str, TaskResult]

    @property
    def facts(self) -> dict[str, Any]:
        """The contestant's checkpoint and results, for scripts."""
        return {"checkpoint": self.name, "tasks": {name: facts_of(result) for name, result in self.results.items()}}


def facts_of(result: TaskResult) -> dict[str, Any]:
    """A result with its means and spreads."""
    measured = {name: {"mean": result.mean(name), "std": result.std(name)} for name in result.metrics}
    return {**result.model_dump(mode="json"), "mean": result.mean(), "std": result.std(), "metrics": measured}


def headings(contestants: Sequence[Contestant]) -> list[str]:
    """`checkpoint`, and each task with its main metric, in the order in which they were given."""
    tasks = {name: result.metric for each in contestants for name, result in each.results.items()}
    return ["checkpoint", *(f"{name} ({metric})" for name, metric in tasks.items())]


def table_rows(contestants: Sequence[Contestant]) -> list[list[str]]:
    """A row for each checkpoint; a star marks the best mean of a task."""
    tasks = list({name: None for each in contestants for name in each.results})
    best = {task: best_of(contestants, task) for task in tasks}
    return [
        [
            each.name,
            *(
                ("-" if task not in each.results else score_text(each.results[task]))
                + (" *" if best[task] is each else "")
                for task in tasks
            ),
        ]
        for each in contestants
    ]


def best_of(contestants: Sequence[Contestant], task: str) -> Contestant | None:
    """Return the contestant with the best mean; None if fewer than two have a mean."""
    with_mean = [
        (mean if result.higher_is_better else -mean, each)
        for each in contestants
        if (result := each.results.get(task)) is not None and (mean := result.mean()) is not None
    ]
    return max(with_mean, key=lambda pair: pair[0])[1] if len(with_mean) > 1 else None


def markdown(contestants: Sequence[Contestant]) -> str:
    """The table as Markdown."""
    heads = headings(contestants)
    lines = [heads, ["---"] * len(heads), *table_rows(contestants)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
