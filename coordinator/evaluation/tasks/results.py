"""The result of a task on a checkpoint: scores of each seed, mean, spread and failed seeds.

Seeds that did not converge are listed but excluded from the mean. The models also validate results
from the network: numbers must be finite, and texts and lists have maximum lengths.
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
    """The scores of one entity class."""

    precision: Annotated[float, Field(ge=0, le=1)]
    recall: Annotated[float, Field(ge=0, le=1)]
    f1: Annotated[float, Field(ge=0, le=1)]
    entities: Annotated[int, Field(ge=0, le=2**31)]  # number of entities in the test set


def _is_empty(value: object) -> bool:
    return value is None or value == {}


class SeedResult(_Frozen):
    """The result of fine-tuning with one seed, or of an evaluation without fine-tuning."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None  # None if the model was not fine-tuned
    scores: Annotated[dict[Short, Score], Field(max_length=32)]  # test scores by metric
    # Empty fields are omitted, so that reports signed by earlier versions remain valid.
    dev_score: Annotated[Score | None, Field(exclude_if=_is_empty)] = None  # in the main metric
    classes: Annotated[dict[Short, ClassScores], Field(max_length=100, exclude_if=_is_empty)] = {}
    epochs: Annotated[int, Field(ge=0, le=10**6)] = 0
    failure: Short = ""  # reason for not converging; "" if converged


class Filling(_Frozen):
    """A token predicted for a mask, and its probability."""

    token: Short
    probability: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ProbeResult(_Frozen):
    """One template's most likely tokens for each group, and the largest distance between groups."""

    template: Annotated[str, Field(max_length=1000)]
    groups: Annotated[tuple[Short, ...], Field(max_length=8, strict=False)]
    fillings: Annotated[
        tuple[Annotated[tuple[Filling, ...], Field(max_length=20, strict=False)], ...],
        Field(max_length=8, strict=False),
    ]
    distance: Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]


class TaskResult(_Frozen):
    """The results of one task on one checkpoint, over all seeds."""

    task: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    kind: Kind
    metric: Short
    higher_is_better: bool
    task_sha256: Digest  # digest of data and recipe; only results with equal digests are comparable
    examples: Annotated[int, Field(ge=0, le=2**31)]  # number of scored examples
    seeds: Annotated[tuple[SeedResult, ...], Field(min_length=1, max_length=32, strict=False)]
    probes: Annotated[tuple[ProbeResult, ...], Field(max_length=200, strict=False)] = ()
    elapsed_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0

    @property
    def converged(self) -> tuple[SeedResult, ...]:
        """The results of seeds that converged."""
        return tuple(seed for seed in self.seeds if not seed.failure)

    @property
    def failures(self) -> tuple[SeedResult, ...]:
        """The results of seeds that did not converge."""
        return tuple(seed for seed in self.seeds if seed.failure)

    def values(self, metric: str | None = None) -> list[float]:
        """Return the converged seeds' scores for a metric (default: main metric), in seed order."""
        name = metric or self.metric
        return [seed.scores[name] for seed in self.converged if name in seed.scores]

    def mean(self, metric: str | None = None) -> float | None:
        """Return the mean score of converged seeds, or None if no seed converged."""
        values = self.values(metric)
        return statistics.fmean(values) if values else None

    def std(self, metric: str | None = None) -> float | None:
        """Return the sample standard deviation of the scores, or None if fewer than two seeds converged."""
        values = self.values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def dev_mean(self) -> float | None:
        """Return the mean development score of converged seeds, or None if no seed has one."""
        values = [seed.dev_score for seed in self.converged if seed.dev_score is not None]
        return statistics.fmean(values) if values else None

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, main metric first."""
        names = {name: None for seed in self.seeds for name in seed.scores}
        return [self.metric, *(name for name in names if name != self.metric)]

    def measures(self) -> dict[str, dict[str, float | None]]:
        """Return the mean and standard deviation of each metric."""
        return {name: {"mean": self.mean(name), "std": self.std(name)} for name in self.metrics}


def result_of(
    task: Task, seeds: list[SeedResult], examples: int, elapsed_s: float, probes: tuple[ProbeResult, ...] = ()
) -> TaskResult:
    """Build the result of a task from the results of its seeds."""
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
    """Return a table row for each entity class: the mean and spread of its scores over seeds."""
    names = sorted({name for seed in result.converged for name in seed.classes})
    rows = []
    for name in names:
        found = [seed.classes[name] for seed in result.converged if name in seed.classes]
        measures = ([each.precision for each in found], [each.recall for each in found], [each.f1 for each in found])
        rows.append((name, *map(_spread_text, measures), f"{max(each.entities for each in found):,}"))
    return rows


def score_text(result: TaskResult, metric: str | None = None) -> str:
    """Format a score for a table, such as `0.7123 ± 0.0081 (1 of 3 seeds failed)`."""
    text = _spread_text(result.values(metric))
    failed = len(result.failures)
    return f"{text} ({failed} of {len(result.seeds)} seeds failed)" if failed else text


def _spread_text(values: Sequence[float]) -> str:
    text = f"{statistics.fmean(values):.4f}" if values else "none"
    return f"{text} ± {statistics.stdev(values):.4f}" if len(values) > 1 else text
