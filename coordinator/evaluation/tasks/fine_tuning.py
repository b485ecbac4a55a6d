"""Fine-tuning of a checkpoint on one task, once per seed.

Training uses accelerate, and AdamW with linear warm-up and decay. Training stops early if the
development score has not improved for `patience` epochs; the weights of the best epoch are
restored. Each kind of task implements `Subject`, which provides data, model and scores.

transformers' Trainer is not used. Its batch order differs, so new results could not be compared
with older ones. To stop at the first infinite loss and to restore the best epoch, it would also
need a subclass, a callback and a folder.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from coordinator.evaluation.tasks.metrics import ScoreReport
from coordinator.evaluation.tasks.pretrained import Pretrained, pad_id, padded, tuning
from coordinator.evaluation.tasks.results import SeedResult
from peer.config.evaluation import Task

logger = logging.getLogger(__name__)

MAX_GRAD_NORM = 1.0
Encoded = Mapping[str, Any]
DEV_SHARE = 10  # without a development set, one in this many training examples is held out
Finished = Callable[[float, Any], None]  # called with the development score and the tuned model


class Subject(ABC):
    """Base class of tasks; a task provides examples and a model, and scores the model's answers."""

    def __init__(
        self, pretrained: Pretrained, task: Task, train: Sequence[Any], dev: Sequence[Any], test: Sequence[Any]
    ) -> None:
        self.pretrained, self.task = pretrained, task
        self.train, self.dev, self.test = train, dev, test
        self.tokenizer = pretrained.tokenizer()
        self.pad = pad_id(self.tokenizer)
        self.length = pretrained.length(task.recipe)

    @abstractmethod
    def encoded(self) -> list[Encoded]:
        """Return the training examples as model inputs."""

    @abstractmethod
    def model(self, seed: int) -> PreTrainedModel:
        """Load the checkpoint with a newly initialized head."""

    @abstractmethod
    def answers(self, model: PreTrainedModel, examples: Sequence[Any]) -> Sequence[Any]:
        """Return the model's answer to each example."""

    @abstractmethod
    def trivial_answers(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return a trivial answer for each example, such as the most frequent label."""

    @abstractmethod
    def report(self, examples: Sequence[Any], answers: Sequence[Any]) -> ScoreReport:
        """Score the answers to these examples."""

    def outputs(self, model: PreTrainedModel, examples: Sequence[Encoded], *names: str) -> Iterator[tuple[Tensor, ...]]:
        """Yield the named outputs of the model for each example, without dropout."""
        model.train(False)
        for start in range(0, len(examples), self.task.recipe.batch_size):
            batch = padded(examples[start : start + self.task.recipe.batch_size], self.pad)
            with torch.no_grad():
                output = model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
            yield from zip(*(output[name].cpu() for name in names), strict=True)

    def dev_score(self, answers: Sequence[Any]) -> float:
        """Return the main metric's score for the answers to the development set."""
        return self.report(self.dev, answers).scores[self.task.main_metric]


def split(train: Sequence[Any], dev: Sequence[Any] | None) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the training and development examples.

    If `dev` is None, every tenth training example is held out, identically for every seed.
    """
    if dev is not None:
        return train, dev
    held = train[::DEV_SHARE]
    return [example for place, example in enumerate(train) if place % DEV_SHARE] or held, held


def run_trials(subject: Subject, finished: Finished) -> list[SeedResult]:
    """Fine-tune once per seed and return the results; pass each converged model to `finished`."""
    encoded, trivial = subject.encoded(), subject.dev_score(subject.trivial_answers(subject.dev))
    return [_run_trial(subject, encoded, seed, trivial, finished) for seed in subject.task.recipe.seeds]


def _run_trial(subject: Subject, encoded: list[Encoded], seed: int, trivial: float, finished: Finished) -> SeedResult:
    task, model = subject.task, subject.model(seed)
    best, epochs = fine_tune(subject, encoded, model, seed)
    why, report = failure(best, trivial), ScoreReport({})
    if best is not None:
        report = subject.report(subject.test, subject.answers(model, subject.test))
        if not why:
            finished(best, model)
    said = report.scores.get(task.main_metric)
    logger.info("%s, seed %d: %s %s%s", task.name, seed, task.main_metric, said, f" ({why})" if why else "")
    return SeedResult(
        seed=seed, scores=report.scores, dev_score=best, classes=report.classes, epochs=epochs, failure=why
    )


def failure(best: float | None, trivial: float) -> str:
    """Return the reason that training failed, or "" if its best score exceeds the trivial score."""
    if best is None:
        return "its loss became infinite or no number"
    if best <= trivial:
        return f"it is no better than the commonest answer ({best:.4f}, and that {trivial:.4f})"
    return ""


def fine_tune(subject: Subject, encoded: list[Encoded], model: PreTrainedModel, seed: int) -> tuple[float | None, int]:
    """Train the model in place, and restore the weights of the epoch with the best development score.

    Returns the best score (None if a loss was not finite) and the number of epochs started.
    """
    recipe = subject.task.recipe
    torch.manual_seed(seed)
    accelerator = Accelerator()
    examples: Any = encoded  # DataLoader accepts any sequence, but its annotation does not
    loader: DataLoader[Encoded] = DataLoader(
        examples,
        recipe.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        collate_fn=lambda batch: padded(batch, subject.pad),
    )
    optimizer = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * len(loader)
    make_schedule: Any = get_linear_schedule_with_warmup
    schedule = make_schedule(optimizer, round(recipe.warmup_share * steps), steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    best, best_epoch, weights = float("-inf"), 0, deepcopy(model.state_dict())
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        for batch in loader:
            with tuning(model):
                loss = model(**batch).loss
            if not bool(torch.isfinite(loss)):
                return None, epoch
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found = subject.dev_score(subject.answers(model, subject.dev))
        if found > best:
            best, best_epoch, weights = found, epoch, deepcopy(model.state_dict())
        elif epoch - best_epoch >= recipe.patience:
            break
    model.load_state_dict(weights)
    return best, epoch
