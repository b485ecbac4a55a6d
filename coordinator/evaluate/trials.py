"""A trained task, seed by seed: fine-tune, judge, and say of a seed that failed why it did.

What a task brings is its `Subject`; what is the same for all of them is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transformers import PreTrainedModel

from coordinator.evaluate.batches import padded
from coordinator.evaluate.fine_tuning import Encoded, fine_tune
from coordinator.evaluate.metrics import Scores
from coordinator.evaluate.results import SeedResult
from peer.config.evaluation import Task

logger = logging.getLogger(__name__)
DEV_SHARE = 10  # a tenth of the training examples, where no development set is given
Finished = Callable[[int, float, PreTrainedModel], None]


class Subject(Protocol):
    """One task with its data, encoded for one checkpoint."""

    @property
    def train(self) -> Sequence[Encoded]:
        """The training examples."""

    @property
    def pad(self) -> int:
        """What fills short samples."""

    @property
    def examples(self) -> int:
        """How many the test set has."""

    def model(self, seed: int) -> PreTrainedModel:
        """The checkpoint with a fresh head."""

    def dev_scores(self, model: PreTrainedModel) -> Scores:
        """On the development set."""

    def test_scores(self, model: PreTrainedModel) -> Scores:
        """On the test set."""

    def trivial_scores(self) -> Scores:
        """On the development set, of whoever always gives the commonest answer."""


@dataclass(frozen=True)
class Split:
    """Training examples and those by which it is decided when to stop."""

    train: list[Any]
    dev: list[Any]


def split(train: Sequence[Any], dev: Sequence[Any] | None, limit: int | None) -> Split:
    """With a development set of its own or every tenth example, which is the same for all checkpoints and seeds."""
    examples = list(train[:limit])
    if dev is not None:
        return Split(examples, list(dev))
    held = examples[::DEV_SHARE]
    return Split([example for place, example in enumerate(examples) if place % DEV_SHARE] or held, held)


def run_trials(subject: Subject, task: Task, finished: Finished = lambda _seed, _dev, _model: None) -> list[SeedResult]:
    """One result for each seed; `finished` gets the seed, its score on the development set and the tuned model."""
    trivial = subject.trivial_scores()[task.main_metric]
    return [_run_trial(subject, task, seed, trivial, finished) for seed in task.recipe.seeds]


def _run_trial(subject: Subject, task: Task, seed: int, trivial: float, finished: Finished) -> SeedResult:
    model = subject.model(seed)
    tuned = fine_tune(
        model,
        subject.train,
        task.recipe,
        seed,
        lambda examples: padded(examples, subject.pad),
        lambda now: subject.dev_scores(now)[task.main_metric],
    )
    why = failure(tuned.finite, tuned.best, trivial)
    scores = subject.test_scores(model) if tuned.finite else {}
    if not why:
        finished(seed, tuned.best, model)
    said = scores.get(task.main_metric)
    logger.info("%s, seed %d: %s %s%s", task.name, seed, task.main_metric, said, f" ({why})" if why else "")
    return SeedResult(seed=seed, scores=scores, epochs=tuned.epochs, failure=why)


def failure(finite: bool, best: float, trivial: float) -> str:
    """Why a fine-tuning has not converged; "" if it has: it must do better than the commonest answer always."""
    if not finite:
        return "its loss became infinite or no number"
    if best <= trivial:
        return f"it is no better than the commonest answer ({best:.4f}, and that {trivial:.4f})"
    return ""
