"""The worker process, started by `running`, which runs one task or exports one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from coordinator.evaluation.tasks.classification import Classifying, Tagging
from coordinator.evaluation.tasks.data import read_split
from coordinator.evaluation.tasks.fill_mask import MaskScores, fill_scores, probe_scores
from coordinator.evaluation.tasks.fine_tuning import Subject, run_trials, split
from coordinator.evaluation.tasks.plan import EmbedderPlan, Plan
from coordinator.evaluation.tasks.pretrained import Pretrained, be_quiet, share_weights
from coordinator.evaluation.tasks.question_answering import Answering
from coordinator.evaluation.tasks.results import ProbeResult, SeedResult, TaskResult, result_of

SUBJECTS: dict[str, Callable[..., Subject]] = {
    "ner": Tagging,
    "pos": Tagging,
    "classification": Classifying,
    "qa": Answering,
}
MEASURES: dict[str, Callable[..., MaskScores]] = {"fill-mask": fill_scores, "bias": probe_scores}


def run_plan(plan: Plan, clock: Callable[[], float] = time.monotonic) -> TaskResult:
    """Run a task; raises `ConfigError` if its data or checkpoint is unusable."""
    if plan.threads:
        torch.set_num_threads(plan.threads)
    be_quiet()
    task, began = plan.task, clock()
    pretrained = Pretrained(plan.checkpoint, plan.random_start)
    pretrained.check()
    train, dev, test = (read_split(task, name, plan.data) for name in ("train", "dev", "test"))
    assert test is not None  # validated by `Task`
    keep = _Best(pretrained, plan.save_to)
    probes: tuple[ProbeResult, ...] = ()
    if task.kind == "retrieval":
        from coordinator.evaluation.tasks.retrieval import run_retrieval  # needs an optional package

        seeds = run_retrieval(pretrained, task, train, dev[0] if dev else None, test[0], keep)
        examples = len(test[0].judged)
    elif train is not None:
        examples, seeds = len(test), run_trials(SUBJECTS[task.kind](pretrained, task, *split(train, dev), test), keep)
    else:
        measure = MEASURES[task.kind]
        found = measure(pretrained, task, test)
        dev_score = None if dev is None else measure(pretrained, task, dev).scores[task.main_metric]
        examples, seeds, probes = found.examples, [SeedResult(scores=found.scores, dev_score=dev_score)], found.probes
    return result_of(task, seeds, examples, clock() - began, probes)


class _Best:
    """A callback that saves the tuned model that scores best on the development set."""

    def __init__(self, pretrained: Pretrained, folder: str) -> None:
        self._pretrained, self._folder = pretrained, folder  # folder "" means that nothing is saved
        self._best = float("-inf")

    def __call__(self, score: float, model: Any) -> None:
        if self._folder and score > self._best:
            self._best = score
            model.save_pretrained(self._folder)
            share_weights(Path(self._folder))
            if isinstance(model, PreTrainedModel):  # a sentence-transformers model saves its own tokenizer
                self._pretrained.tokenizer().save_pretrained(self._folder)


def save_embedder(plan: EmbedderPlan) -> int:
    """Save the plan's checkpoint as a sentence-transformers model; return the embedding size."""
    from coordinator.evaluation.tasks.retrieval import save_checked  # needs an optional package

    be_quiet()
    pretrained = Pretrained(plan.checkpoint)
    probe = load_file(Path(plan.checkpoint) / "probe.safetensors")["input_ids"]  # (b, l)
    text = pretrained.tokenizer().decode(probe[0], skip_special_tokens=True)
    width = save_checked(pretrained, Path(plan.folder), str(text).strip(), plan.length)
    share_weights(Path(plan.folder))
    return width


def main(plan: Plan | EmbedderPlan, answer: Any) -> None:
    """Run the plan, and send its result through the pipe `answer`."""
    answer.send(run_plan(plan) if isinstance(plan, Plan) else save_embedder(plan))
