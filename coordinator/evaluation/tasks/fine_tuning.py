"""Fine-tuning of a checkpoint on one task, once for each seed, with the reason why a seed failed.

AdamW with linear warm-up and decay, in accelerate. Training stops early when the score on the development set has not
improved for `patience` epochs, and the model gets the weights of its best epoch. Each task provides a `Subject`: its
data, model and scores; everything else is the same for all tasks.

transformers' Trainer is not used. It draws the batches in another order, so results of the same task before and after
could not be compared; and only with a subclass, a callback and a folder does it stop at the first infinite loss and
keep the best epoch's weights in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from coordinator.evaluation.tasks.metrics import ScoreReport, Scores
from coordinator.evaluation.tasks.pretrained import padded, tuning
from coordinator.evaluation.tasks.results import SeedResult
from peer.config.evaluation import Recipe, Task

logger = logging.getLogger(__name__)

MAX_GRAD_NORM = 1.0
Encoded = Mapping[str, Any]
Batch = dict[str, Tensor]
DEV_SHARE = 10  # a tenth of the training examples, where no development set is given
Finished = Callable[[int, float, PreTrainedModel], None]


class Subject(Protocol):
    """One task with its data, encoded for one checkpoint."""

    @property
    def train(self) -> Sequence[Encoded]:
        """The training examples."""

    @property
    def pad(self) -> int:
        """The id that fills short samples."""

    @property
    def examples(self) -> int:
        """The number of examples in the test set."""

    def model(self, seed: int) -> PreTrainedModel:
        """The checkpoint with a fresh head."""

    def dev_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the development set."""

    def test_scores(self, model: PreTrainedModel) -> ScoreReport:
        """Return the scores on the test set."""

    def trivial_scores(self) -> Scores:
        """Return the scores on the development set of always giving the commonest answer."""


@dataclass(frozen=True)
class TrainDevSplit:
    """Training examples and those by which it is decided when to stop."""

    train: list[Any]
    dev: list[Any]


def split(train: Sequence[Any], dev: Sequence[Any] | None, limit: int | None) -> TrainDevSplit:
    """With a development set of its own or every tenth example, which is the same for all checkpoints and seeds."""
    examples = list(train[:limit])
    if dev is not None:
        return TrainDevSplit(examples, list(dev))
    held = examples[::DEV_SHARE]
    return TrainDevSplit([example for place, example in enumerate(examples) if place % DEV_SHARE] or held, held)


def run_trials(subject: Subject, task: Task, finished: Finished = lambda _seed, _dev, _model: None) -> list[SeedResult]:
    """Fine-tune once for each seed; `finished` gets the seed, the score on the development set and the model."""
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
    report = subject.test_scores(model) if tuned.finite else ScoreReport({})
    if not why:
        finished(seed, tuned.best, model)
    said = report.scores.get(task.main_metric)
    logger.info("%s, seed %d: %s %s%s", task.name, seed, task.main_metric, said, f" ({why})" if why else "")
    dev_score = tuned.best if tuned.finite else None
    return SeedResult(
        seed=seed,
        scores=report.scores,
        dev_score=dev_score,
        classes=report.classes,
        epochs=tuned.epochs,
        failure=why,
    )


def failure(finite: bool, best: float, trivial: float) -> str:
    """Return the reason why a fine-tuning has not converged; "" if it beats always giving the commonest answer."""
    if not finite:
        return "its loss became infinite or no number"
    if best <= trivial:
        return f"it is no better than the commonest answer ({best:.4f}, and that {trivial:.4f})"
    return ""


@dataclass(frozen=True)
class Tuned:
    """The outcome of a fine-tuning."""

    epochs: int  # that were begun
    best: float  # score on the development set
    finite: bool  # no loss was infinite or no number


def fine_tune(
    model: PreTrainedModel,
    train: Sequence[Encoded],
    recipe: Recipe,
    seed: int,
    collate: Callable[[Sequence[Encoded]], Batch],
    score: Callable[[PreTrainedModel], float],
) -> Tuned:
    """Train the model in place; it ends with the weights of the epoch whose score was best (higher is better)."""
    torch.manual_seed(seed)
    accelerator = Accelerator()
    order = torch.Generator().manual_seed(seed)
    examples: Any = train  # any sequence will do
    loader: DataLoader[Encoded] = DataLoader(
        examples, recipe.batch_size, shuffle=True, generator=order, collate_fn=collate
    )
    optimizer = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * len(loader)
    make_schedule: Any = get_linear_schedule_with_warmup
    schedule = make_schedule(optimizer, round(recipe.warmup_share * steps), steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    best, best_epoch, weights = float("-inf"), 0, _copy(model)
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        for batch in loader:
            with tuning(model):
                loss = model(**batch).loss
            if not bool(torch.isfinite(loss)):
                return Tuned(epoch, best, finite=False)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found = score(model)
        if found > best:
            best, best_epoch, weights = found, epoch, _copy(model)
        elif epoch - best_epoch >= recipe.patience:
            break
    model.load_state_dict(weights)
    return Tuned(epoch, best, finite=True)


def logits_of(
    model: PreTrainedModel, examples: Sequence[Encoded], batch_size: int, collate: Callable[[Sequence[Encoded]], Batch]
) -> list[Any]:
    """The model's output of each batch in order, dropout off, without its labels."""
    model.train(False)
    outputs = []
    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            batch = collate(examples[start : start + batch_size])
            batch.pop("labels", None)
            outputs.append(model(**{name: tensor.to(model.device) for name, tensor in batch.items()}))
    return outputs


def _copy(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
