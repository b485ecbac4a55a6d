"""The process that computes: one task on one checkpoint, or its export. Only it imports torch; `running` spawns it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from coordinator.evaluation.tasks.classification import Classifying, Tagging
from coordinator.evaluation.tasks.data import DataFolders, dev_examples, judged_examples, train_examples
from coordinator.evaluation.tasks.fill_mask import fill_scores, probe_scores
from coordinator.evaluation.tasks.fine_tuning import Subject, run_trials, split
from coordinator.evaluation.tasks.metrics import Scores
from coordinator.evaluation.tasks.plan import EmbedderPlan, Plan
from coordinator.evaluation.tasks.pretrained import Pretrained, be_quiet, share_weights
from coordinator.evaluation.tasks.question_answering import Answering
from coordinator.evaluation.tasks.results import ProbeResult, SeedResult, TaskResult, result_of
from peer.config.evaluation import Task

logger = logging.getLogger(__name__)
SUBJECTS: dict[str, Callable[..., Subject]] = {
    "ner": Tagging,
    "pos": Tagging,
    "classification": Classifying,
    "qa": Answering,
}


def run_plan(plan: Plan, clock: Callable[[], float] = time.monotonic) -> TaskResult:
    """The task's result; raises `ConfigError` for data or a checkpoint that cannot be used."""
    if plan.threads:
        torch.set_num_threads(plan.threads)
    be_quiet()
    began = clock()
    pretrained = Pretrained(plan.checkpoint, plan.random_start)
    pretrained.check()
    place = DataFolders(Path(plan.base), Path(plan.cache), plan.confined)
    if plan.task.kind == "retrieval":
        return _retrieved(plan, pretrained, place, clock, began)
    if plan.task.is_trained:
        return _trained(plan, pretrained, place, clock, began)
    found = _measured(plan.task, pretrained, judged_examples(plan.task, place))
    dev = dev_examples(plan.task, place)
    dev_score = None if dev is None else _measured(plan.task, pretrained, dev).scores[plan.task.main_metric]
    seed = SeedResult(scores=found.scores, dev_score=dev_score)
    return result_of(plan.task, [seed], found.examples, clock() - began, found.probes)


@dataclass(frozen=True)
class _Measured:
    """Scores of a checkpoint as it is."""

    scores: Scores
    examples: int
    probes: tuple[ProbeResult, ...] = ()


def _measured(task: Task, pretrained: Pretrained, examples: Sequence[Any]) -> _Measured:
    if task.kind == "bias":
        scores, probes = probe_scores(pretrained, task, examples)
        return _Measured(scores, len(examples), probes)
    return _Measured(*fill_scores(pretrained, task, examples))


def _trained(
    plan: Plan, pretrained: Pretrained, place: DataFolders, clock: Callable[[], float], began: float
) -> TaskResult:
    task = plan.task
    parts = split(train_examples(task, place), dev_examples(task, place), task.recipe.max_train)
    subject = SUBJECTS[task.kind](pretrained, task, parts.train, parts.dev, judged_examples(task, place))
    keep = _Best(Path(plan.save_to), pretrained.tokenizer()) if plan.save_to else None
    seeds = run_trials(subject, task, keep or (lambda _seed, _dev, _model: None))
    return result_of(task, seeds, subject.examples, clock() - began)


def _retrieved(
    plan: Plan, pretrained: Pretrained, place: DataFolders, clock: Callable[[], float], began: float
) -> TaskResult:
    from coordinator.evaluation.tasks.retrieval import run_retrieval  # of an optional package

    task = plan.task
    (test,) = judged_examples(task, place)
    (dev,) = dev_examples(task, place) or (None,)
    pairs = train_examples(task, place) if task.is_trained else None
    keep = _Best(Path(plan.save_to)) if plan.save_to else None
    seeds = run_retrieval(pretrained, task, pairs, dev, test, keep or (lambda _seed, _dev, _model: None))
    return result_of(task, seeds, len(test.judged), clock() - began)


class _Best:
    """Keeps the tuned model whose score on the development set is best, never that on the test set.

    A model of sentence-transformers saves its tokenizer itself, with the length to which it cuts texts.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self._best = float("-inf")

    def __call__(self, _seed: int | None, score: float, model: Any) -> None:
        if score > self._best:
            self._best = score
            model.save_pretrained(self._folder)
            share_weights(self._folder)
            if self._tokenizer is not None:
                self._tokenizer.save_pretrained(self._folder)


def save_embedder(plan: EmbedderPlan) -> int:
    """Save the checkpoint as a model of sentence-transformers and return the length of its embeddings."""
    from coordinator.evaluation.tasks.retrieval import save_checked  # of an optional package

    be_quiet()
    pretrained = Pretrained(plan.checkpoint)
    probe = load_file(Path(plan.checkpoint) / "probe.safetensors")["input_ids"]  # (b, l)
    text = pretrained.tokenizer().decode(probe[0], skip_special_tokens=True)
    width = save_checked(pretrained, Path(plan.folder), str(text).strip(), plan.length)
    share_weights(Path(plan.folder))
    return width


def main(plan: Plan | EmbedderPlan, answer: Any) -> None:
    """Main function of the process: sends the result, or the error that a person can act on, through the pipe."""
    answer.send(run_plan(plan) if isinstance(plan, Plan) else save_embedder(plan))
