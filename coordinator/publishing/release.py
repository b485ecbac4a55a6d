"""Releases: tested folders of the model, fine-tuned task models and a demo.

A rule selects the checkpoint, and the model card states the rule. The card of a task model states
the base model, the examples, the recipe and the scores.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import SpaceCardData

from auth.errors import ConfigError
from auth.files import new_directory
from coordinator.checkpoints.export import exporting
from coordinator.checkpoints.manifest import StoredCheckpoint, verify
from coordinator.checkpoints.validations import ValidationRow, validations
from coordinator.context.open_run import OpenRun
from coordinator.evaluation.evaluations import OPERATOR, EvaluationRow, evaluations, record_evaluation
from coordinator.evaluation.tasks.data import DataFolders
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import TaskResult, score_text
from coordinator.evaluation.tasks.running import run_apart
from coordinator.ledger.recorded_checkpoints import CheckpointRow, checkpoints
from coordinator.publishing.card_facts import CardFacts, facts_of_run
from coordinator.publishing.cards import CARD, card_files, task_card
from coordinator.publishing.front_matter import PIPELINES, TASK_TYPES
from coordinator.publishing.soundness import check_loads
from peer.config.evaluation import Task

HELD_OUT, NEWEST = "held-out-loss", "newest"
MODEL, DEMO = "model", "demo"
_EVALUATE_FIRST = (
    "run `manyhands coordinator evaluator DIR` first (`--evaluate` tries only the checkpoint that is already chosen)"
)
RunPlan = Callable[[Plan], TaskResult | None]
FILES = ("app.py", "index.html", "requirements.txt", "Dockerfile")
SOURCE = Path(__file__).parent / "space"
# Pipelines that the demo supports, and their titles.
SHOWN = {
    "fill-mask": "Fill a mask",
    "token-classification": "Tag words",
    "text-classification": "Classify a text",
    "text-generation": "Continue a text",
}


@dataclass(frozen=True)
class ReleaseOptions:
    """The operator's options for a release."""

    rule: str
    task_models: Sequence[str] = ()  # names of tasks whose fine-tuned models to release
    evaluate: bool = False  # run all tasks that lack a result for this checkpoint
    demo: bool = False
    repository: str = ""  # repository on the Hub; "" if the demo loads local folders instead


@dataclass(frozen=True)
class Released:
    """A finished release: its checkpoint, the reason for choosing it, and the released task models."""

    stored: StoredCheckpoint
    choice: str
    loss: float  # probe loss computed by plain transformers
    tasks: tuple[str, ...]  # names of tasks whose models were released


def make_release(
    run: OpenRun, out: Path, wanted: ReleaseOptions, clock: Callable[[], float], run_plan: RunPlan = run_apart
) -> Released:
    """Choose, fine-tune, evaluate and export a checkpoint; write the folder `out` atomically."""
    config = run.directory.config
    tasks = config.evaluation.tasks
    wanted_models = [_find(tasks, name) for name in wanted.task_models]
    row, choice = choose(
        wanted.rule, checkpoints(run.database), validations(run.database), evaluations(run.database), tasks
    )
    stored = verify(run.directory.checkpoint_dir(row.step))
    with new_directory(out) as folder:
        tuned = _tune(run, folder, stored, wanted, wanted_models, clock, run_plan)
        facts = facts_of_run(run.directory, run.database, stored, choice=choice, repository=wanted.repository)
        with exporting(stored, folder / MODEL, card_files(facts)) as exported:
            loss = check_loads(exported).loss
        for task, result in tuned.items():
            (folder / task.name / CARD).write_text(task_card(facts, task, result), encoding="utf-8")
        if wanted.demo:
            _write_demo(folder / DEMO, facts, tuned)
    return Released(stored, choice, loss, tuple(task.name for task in tuned))


def task_repository(repository: str, task: str) -> str:
    """Return the Hub repository for a task model or for the demo."""
    return f"{repository}-{task}"


def _tune(
    run: OpenRun,
    folder: Path,
    stored: StoredCheckpoint,
    wanted: ReleaseOptions,
    models: Sequence[Task],
    clock: Callable[[], float],
    run_plan: RunPlan,
) -> dict[Task, TaskResult]:
    """Fine-tune the task models and return their results; if requested, run unevaluated tasks."""
    known = {
        (row.result.task, row.result.task_sha256)
        for row in evaluations(run.database)
        if row.manifest_sha256 == stored.manifest_sha256
    }
    folders = DataFolders(run.directory.path, run.directory.path / "examples")
    tuned = {}
    for task in run.directory.config.evaluation.tasks:
        is_model = task in models
        if not is_model and (not wanted.evaluate or (task.name, task.sha256) in known):
            continue
        save_to = str(folder / task.name) if is_model else ""
        result = run_plan(Plan(str(stored.path), task, folders, save_to=save_to))
        assert result is not None  # `run_plan` returns None only if stopped, and nothing stops it here
        if is_model and not result.converged:
            raise ConfigError(f"No seed of the task `{task.name}` has converged: there is no model to release for it.")
        manifest = stored.manifest
        record_evaluation(run.database, EvaluationRow(manifest.step, stored.manifest_sha256, OPERATOR, result, clock()))
        if is_model:
            tuned[task] = result
    return tuned


def _find(tasks: Sequence[Task], name: str) -> Task:
    for task in tasks:
        if task.name == name and task.is_trained and name not in {MODEL, DEMO}:
            return task
    known = ", ".join(task.name for task in tasks if task.is_trained) or "none"
    raise ConfigError(f"The run file names no task {name!r:.60} that is fine-tuned; it names: {known}.")


def choose(
    rule: str,
    checkpoints: Sequence[CheckpointRow],
    validations: Sequence[ValidationRow],
    evaluations: Sequence[EvaluationRow],
    tasks: Sequence[Task],
) -> tuple[CheckpointRow, str]:
    """Choose a publishable checkpoint by a rule, and return it with a sentence stating the reason.

    `rule` is `held-out-loss`, `newest`, a step number, or the name of a task. Test scores are never
    used, because selection would bias them. Raises `ConfigError` if no checkpoint matches.
    """
    kept = [row for row in checkpoints if not row.withheld]
    if not kept:
        raise ConfigError("There is no checkpoint that may be published.")
    if rule == NEWEST:
        newest = max(kept, key=lambda row: row.step)
        return newest, f"The released checkpoint, of step {newest.step}, is the newest."
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
            return row, f"The released checkpoint, of step {step}, was chosen by the operator."
    known = ", ".join(str(row.step) for row in kept)
    raise ConfigError(f"There is no checkpoint of step {step} that may be published; there are those of: {known}.")


def _by_loss(kept: Sequence[CheckpointRow], validations: Sequence[ValidationRow]) -> tuple[CheckpointRow, str]:
    """Choose the checkpoint with the lowest loss on the newest held-out set."""
    newest = validations[-1].set_sha256 if validations else ""
    measured = {row.manifest_sha256: row.loss for row in validations if row.set_sha256 == newest}
    found = [(loss, row) for row in kept if (loss := measured.get(row.manifest_sha256)) is not None]
    if not found:
        raise ConfigError(
            "No checkpoint has a loss on held-out text: choose by another `--rule`, or wait for the validator."
        )
    loss, best = min(found, key=lambda pair: (pair[0], -pair[1].step))
    return best, (
        f"The released checkpoint, of step {best.step}, has the lowest loss on held-out text ({loss:.4f}), "
        f"{_among(len(found), 'measured', len(kept))}."
    )


def _by_task(
    kept: Sequence[CheckpointRow], evaluations: Sequence[EvaluationRow], task: Task
) -> tuple[CheckpointRow, str]:
    """Choose the checkpoint with the best mean development score; also state its test score."""
    results = {
        row.manifest_sha256: row.result
        for row in evaluations
        if row.result.task == task.name and row.result.task_sha256 == task.sha256
    }
    sign = 1.0 if task.higher_is_better else -1.0
    found = [
        (sign * mean, row, result)
        for row in kept
        if (result := results.get(row.manifest_sha256)) is not None and (mean := result.dev_mean()) is not None
    ]
    if not found:
        remedy = _EVALUATE_FIRST if task.is_trained or task.dev else "give the task `dev` examples"
        raise ConfigError(f"No checkpoint that is kept has a score on the task `{task.name}` to choose by: {remedy}.")
    score, best, result = max(found, key=lambda each: (each[0], each[1].step))
    return best, (
        f"The released checkpoint, of step {best.step}, has the best mean {task.main_metric} on the development set of "
        f"the task {task.name} ({sign * score:.4f}), {_among(len(found), 'evaluated', len(kept))}. "
        f"On the test set, which did not decide, it has {score_text(result)}."
    )


def _among(scored: int, how: str, kept: int) -> str:
    """Return a clause that states the numbers of compared and of publishable checkpoints."""
    return f"of {scored} {how}, of {kept} that are kept and may be published"


def _write_demo(folder: Path, facts: CardFacts, tasks: Iterable[Task]) -> None:
    """Write a demo of the supported models, loaded from the Hub or from adjacent folders."""
    run_name, hub = facts.config.run.name, facts.repository
    models = {run_name: (hub or f"../{MODEL}", PIPELINES[facts.config.objective.name])}
    for task in tasks:
        models[task.name] = (task_repository(hub, task.name) if hub else f"../{task.name}", TASK_TYPES[task.kind])
    about = {
        name: {"model": place, "task": kind, "title": f"{SHOWN[kind]} ({name})"}
        for name, (place, kind) in models.items()
        if kind in SHOWN
    }
    title = f"Try {run_name}"
    front = SpaceCardData(
        title=title,
        sdk="docker",
        app_port=7860,
        license=facts.license.lower() or None,
        models=[place for place, _ in models.values()] if hub else None,
    )
    text = f"---\n{front.to_yaml()}\n---\n\n# {title}\n\nA page to try the models of the run `{run_name}`.\n"
    folder.mkdir()
    for name in FILES:
        shutil.copyfile(SOURCE / name, folder / name)
    (folder / "models.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(text, encoding="utf-8")
