"""The result of a task on a checkpoint: scores of each seed, their mean and spread, and failed seeds; from and to JSON.

A seed that failed to converge is told as such and is no part of the mean. Results from the network are validated by
these models: numbers are finite, texts and lists bounded.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from peer.config.evaluation import Kind, Task

Score = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Short = Annotated[str, Field(max_length=200)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ClassScores(_Frozen):
    """The scores of one class of entities."""

    precision: Annotated[float, Field(ge=0, le=1)]
    recall: Annotated[float, Field(ge=0, le=1)]
    f1: Annotated[float, Field(ge=0, le=1)]
    entities: Annotated[int, Field(ge=0, le=2**31)]  # of the class in the test set


def _is_empty(value: object) -> bool:
    return value is None or value == {}


class SeedResult(_Frozen):
    """One fine-tuning, or the one look at a checkpoint that needs none."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None  # None: there was nothing to draw
    scores: Annotated[dict[Short, Score], Field(max_length=32)]  # on the test set
    # Left out where they are empty, so that signatures under reports of earlier versions stay valid:
    dev_score: Annotated[Score | None, Field(exclude_if=_is_empty)] = None  # of the main metric on the development set
    classes: Annotated[dict[Short, ClassScores], Field(max_length=100, exclude_if=_is_empty)] = {}
    epochs: Annotated[int, Field(ge=0, le=10**6)] = 0
    failure: Short = ""  # why it counts as not converged; "": it has


class Filling(_Frozen):
    """A word that fills a mask, and its probability."""

    token: Short
    probability: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ProbeResult(_Frozen):
    """The words that the model puts into the same sentence for each group."""

    template: Annotated[str, Field(max_length=1000)]
    groups: Annotated[tuple[Short, ...], Field(max_length=8, strict=False)]
    fillings: Annotated[
        tuple[Annotated[tuple[Filling, ...], Field(max_length=20, strict=False)], ...],
        Field(max_length=8, strict=False),
    ]
    distance: Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]


class TaskResult(_Frozen):
    """All seeds of one task on one checkpoint."""

    task: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    kind: Kind
    metric: Short
    higher_is_better: bool
    task_sha256: Digest  # data and recipe: only results with the same one can be compared
    examples: Annotated[int, Field(ge=0, le=2**31)]  # that were scored
    seeds: Annotated[tuple[SeedResult, ...], Field(min_length=1, max_length=32, strict=False)]
    probes: Annotated[tuple[ProbeResult, ...], Field(max_length=200, strict=False)] = ()
    elapsed_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0

    @property
    def converged(self) -> tuple[SeedResult, ...]:
        """The seeds that count."""
        return tuple(seed for seed in self.seeds if not seed.failure)

    @property
    def failures(self) -> tuple[SeedResult, ...]:
        """The seeds that do not."""
        return tuple(seed for seed in self.seeds if seed.failure)

    def values(self, metric: str | None = None) -> list[float]:
        """The scores of the seeds that count, in their order; by default of the main metric."""
        name = metric or self.metric
        return [seed.scores[name] for seed in self.converged if name in seed.scores]

    def mean(self, metric: str | None = None) -> float | None:
        """Over the seeds that count; None if none does."""
        values = self.values(metric)
        return statistics.fmean(values) if values else None

    def std(self, metric: str | None = None) -> float | None:
        """The sample standard deviation; None for fewer than two seeds that count."""
        values = self.values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def dev_mean(self) -> float | None:
        """The mean score on the development set over the seeds that count; None if there is none."""
        values = [seed.dev_score for seed in self.converged if seed.dev_score is not None]
        return statistics.fmean(values) if values else None

    @property
    def metrics(self) -> list[str]:
        """All that were measured, the main one first."""
        names = {name: None for seed in self.seeds for name in seed.scores}
        return [self.metric, *(name for name in names if name != self.metric)]

    def measures(self) -> dict[str, dict[str, float | None]]:
        """Mean and spread of each metric, for scripts."""
        return {name: {"mean": self.mean(name), "std": self.std(name)} for name in self.metrics}


def result_of(
    task: Task, seeds: list[SeedResult], examples: int, elapsed_s: float, probes: tuple[ProbeResult, ...] = ()
) -> TaskResult:
    """The result of a task as its configuration names it."""
    return TaskResult(
        task=task.name,
        kind=task.kind,
        metric=task.main_metric,
        higher_is_better=task.higher_is_better,
        task_sha256=task.sha256,
        examples=examples,
        seeds=tuple(seeds),
        probes=probes,
        elapsed_s=elapsed_s,
    )


CLASS_HEADINGS = ("class", "precision", "recall", "f1", "entities")


def class_rows(result: TaskResult) -> list[tuple[str, ...]]:
    """Each class of entities with its scores over the seeds that count, for tables."""
    names = sorted({name for seed in result.converged for name in seed.classes})
    rows = []
    for name in names:
        found = [seed.classes[name] for seed in result.converged if name in seed.classes]
        measures = ([each.precision for each in found], [each.recall for each in found], [each.f1 for each in found])
        rows.append((name, *map(_spread_text, measures), f"{max(each.entities for each in found):,}"))
    return rows


def score_text(result: TaskResult, metric: str | None = None) -> str:
    """`0.7123 ± 0.0081 (3 seeds)`, with those that failed; for tables."""
    text = _spread_text(result.values(metric))
    failed = len(result.failures)
    return f"{text} ({failed} of {len(result.seeds)} seeds failed)" if failed else text


def _spread_text(values: Sequence[float]) -> str:
    text = f"{statistics.fmean(values):.4f}" if values else "none"
    return f"{text} ± {statistics.stdev(values):.4f}" if len(values) > 1 else text
