"""Makes a release: folders for the model, each task model and the demo, written aside and tried before they appear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from auth.errors import ConfigError
from auth.files import new_directory
from coordinator.card_facts import card_of_run
from coordinator.directory import RunDirectory
from coordinator.evaluate.plan import Plan
from coordinator.evaluate.results import TaskResult
from coordinator.evaluate.running import run_apart
from coordinator.evaluations import OPERATOR, EvaluationRow, evaluations, record_evaluation
from coordinator.export import exporting
from coordinator.manifests import StoredCheckpoint, verify
from coordinator.model_card import PIPELINES, TASK_TYPES
from coordinator.presence import checkpoints
from coordinator.release.choice import choose
from coordinator.release.demo_space import Shown, write_demo
from coordinator.release.task_card import task_card
from coordinator.runs import OpenRun
from coordinator.soundness import check_loads
from coordinator.validations import validations
from peer.config.evaluation import Task

MODEL, DEMO = "model", "demo"
RunPlan = Callable[[Plan], TaskResult | None]


@dataclass(frozen=True)
class Wanted:
    """What the operator asks for."""

    rule: str
    task_models: Sequence[str] = ()  # tasks for which a fine-tuned model is released, too
    evaluate: bool = False  # all tasks that nobody has tried on this checkpoint
    demo: bool = False
    repository: str = ""  # where it will be on the hub; "": nowhere, the demo takes the folders


@dataclass(frozen=True)
class Released:
    """What was made."""

    stored: StoredCheckpoint
    choice: str
    loss: float  # of the probe, in plain transformers' hands
    tasks: tuple[str, ...]  # those with a model of their own


def make_release(
    run: OpenRun, out: Path, wanted: Wanted, clock: Callable[[], float], run_plan: RunPlan = run_apart
) -> Released:
    """Choose, evaluate, export, try, fine-tune; `out` appears whole or not at all."""
    config = run.directory.config
    tasks = config.evaluation.tasks
    wanted_models = [_find(tasks, name) for name in wanted.task_models]
    row, choice = choose(
        wanted.rule, checkpoints(run.sessions), validations(run.sessions), evaluations(run.sessions), tasks
    )
    stored = verify(run.directory.checkpoint_dir(row.step))
    with new_directory(out) as folder:
        tuned = _tune(run, folder, stored, wanted, wanted_models, clock, run_plan)
        terms = run.directory.settings.model_license or ""
        card = card_of_run(run.sessions, run.ledger, config, stored, terms, choice)
        with exporting(stored, folder / MODEL, card) as exported:
            loss = check_loads(exported).loss
        base = wanted.repository or config.run.name
        for task, result in tuned.items():
            text = task_card(config.run.name, config.run.language, base, terms, task, result)
            (folder / task.name / "README.md").write_text(text, encoding="utf-8")
        if wanted.demo:
            write_demo(folder / DEMO, config.run.name, terms, _shown(run.directory, wanted.repository, list(tuned)))
    return Released(stored, choice, loss, tuple(task.name for task in tuned))


def task_repository(repository: str, task: str) -> str:
    """Where a task's model, or the demo, goes beside the model's own repository."""
    return f"{repository}-{task}"


def _tune(
    run: OpenRun,
    folder: Path,
    stored: StoredCheckpoint,
    wanted: Wanted,
    models: Sequence[Task],
    clock: Callable[[], float],
    run_plan: RunPlan,
) -> dict[Task, TaskResult]:
    """Fine-tune the models that are wanted, and evaluate what is missing; the run's database keeps the results."""
    known = {
        (row.result.task, row.result.task_sha256)
        for row in evaluations(run.sessions)
        if row.manifest_sha256 == stored.manifest_sha256
    }
    base = run.directory.path
    tuned = {}
    for task in run.directory.config.evaluation.tasks:
        is_model = task in models
        if not is_model and (not wanted.evaluate or (task.name, task.sha256) in known):
            continue
        save_to = str(folder / task.name) if is_model else ""
        result = run_plan(Plan(str(stored.path), task, str(base), str(base / "examples"), save_to=save_to))
        assert result is not None  # nobody told it to stop
        if is_model and not result.converged:
            raise ConfigError(f"No seed of the task `{task.name}` has converged: there is no model to release for it.")
        manifest = stored.manifest
        record_evaluation(run.sessions, EvaluationRow(manifest.step, stored.manifest_sha256, OPERATOR, result, clock()))
        if is_model:
            tuned[task] = result
    return tuned


def _find(tasks: Sequence[Task], name: str) -> Task:
    for task in tasks:
        if task.name == name and task.is_trained and name not in {MODEL, DEMO}:
            return task
    known = ", ".join(task.name for task in tasks if task.is_trained) or "none"
    raise ConfigError(f"The run file names no task {name!r:.60} that is fine-tuned; it names: {known}.")


def _shown(directory: RunDirectory, repository: str, tasks: Sequence[Task]) -> dict[str, Shown]:
    model = repository or f"../{MODEL}"
    found = {directory.config.run.name: Shown(model, PIPELINES[directory.config.objective.name])}
    for task in tasks:
        where = task_repository(repository, task.name) if repository else f"../{task.name}"
        found[task.name] = Shown(where, TASK_TYPES[task.kind])
    return found
