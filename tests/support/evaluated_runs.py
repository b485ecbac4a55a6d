"""Runs with tasks: a small run whose `evaluation` names files of its own, and results that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from coordinator.evaluation.tasks.results import SeedResult, TaskResult, result_of
from coordinator.run.directory import RunDirectory
from peer.config.evaluation import Task
from peer.config.run import RunConfig
from tests.support.small_run import make_small_run

TEXT = "Many hands make light work.\nA river is many small streams."
FILL = {"name": "fill", "kind": "fill-mask", "test": "held-out.txt", "recipe": {"max_length": 32}}
NER = {
    "name": "ner",
    "kind": "ner",
    "train": "train.conll",
    "test": "test.conll",
    "references": [{"name": "an earlier model", "value": 0.9}],
}


def make_evaluated_run(directory: Path, *tasks: dict[str, Any]) -> RunDirectory:
    """A small run with these tasks, and the text that `FILL` names."""
    run = make_small_run(directory)
    set_tasks(run.path, tasks)
    (run.path / "held-out.txt").write_text(TEXT)
    return RunDirectory.open(run.path)


def set_tasks(run_dir: Path, tasks: Sequence[dict[str, Any]]) -> None:
    """Write them into the run file."""
    content = yaml.safe_load((run_dir / "run.yaml").read_text())
    content["evaluation"] = {"tasks": list(tasks)}
    (run_dir / "run.yaml").write_text(RunConfig.from_mapping(content).to_yaml())


def made_up(task: dict[str, Any], *values: float, failed: int = 0, dev: float | None = None) -> TaskResult:
    """A result with these values of the main metric, one for each seed, and some that failed.

    `dev`: each seed's score on the development set.
    """
    asked = Task.model_validate(task)
    seeds = [
        SeedResult(seed=number, scores={asked.main_metric: value}, dev_score=dev) for number, value in enumerate(values)
    ]
    seeds += [SeedResult(seed=100 + number, scores={}, failure="it failed") for number in range(failed)]
    return result_of(asked, seeds, 10, 1.5)
