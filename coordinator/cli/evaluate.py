"""`manyhands evaluate`: run downstream tasks on one checkpoint, or compare several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from platformdirs import user_cache_path
from pydantic import ValidationError

from auth.errors import ConfigError
from auth.files import require_free
from coordinator.checkpoints.manifest import newest_verified
from coordinator.evaluation.hub_models import require_model
from coordinator.evaluation.presets import PRESETS, files_of, preset_of
from coordinator.evaluation.tasks.data import DataFolders, check_readable
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import CLASS_HEADINGS, TaskResult, class_rows, score_text
from coordinator.evaluation.tasks.running import run_apart
from peer.config.base import first_mistake
from peer.config.evaluation import MAY_BE_UNTRAINED, METRICS, Columns, Task
from peer.config.run import RunConfig
from peer.runtime.console import say, say_json, say_table

app = typer.Typer(pretty_exceptions_enable=False)
RANDOM_START = "random start"


@app.command("evaluate", epilog="Example: manyhands evaluate my-model --task ner --train train.conll --test test.conll")
def evaluate(
    checkpoint: list[str] = typer.Argument(
        ...,
        metavar="CHECKPOINT...",
        help="A run's directory (its newest checkpoint), a checkpoint's folder, or a model on the hub.",
        show_default=False,
    ),
    task: str = typer.Option("", help=f"Kind of task to evaluate: {', '.join(METRICS)}."),
    preset: str = typer.Option("", help=f"A benchmark with local files, instead of --task: {', '.join(PRESETS)}."),
    data: Path | None = typer.Option(
        None, help="A folder with train, validation (or dev) and test files, instead of these.", show_default=False
    ),
    config: Path | None = typer.Option(
        None, help="A run file: all tasks in `evaluation`; paths are relative to the file.", show_default=False
    ),
    train: str = typer.Option("", help="Training examples: a file, optionally gzipped, or hub:OWNER/NAME."),
    dev: str = typer.Option("", help="Development examples, for early stopping; default: a tenth of --train."),
    test: str = typer.Option("", help="Test examples; for a retrieval task, its relevance judgements."),
    queries: str = typer.Option("", help="Queries of a retrieval task."),
    corpus: str = typer.Option("", help="Documents of a retrieval task."),
    text_column: str = typer.Option(
        "", help="Column of the text: a name or, in CoNLL files, a number (from 0; negative: from the end)."
    ),
    pair_column: str = typer.Option("", help="Column of a second text."),
    label_column: str = typer.Option("", help="Column of the label or tag, given as for --text-column."),
    metric: str = typer.Option("", help="Metric for the comparison; default: the task's first."),
    seeds: int | None = typer.Option(None, min=1, max=32, help="Number of fine-tunings.", show_default="3"),
    epochs: int | None = typer.Option(
        None, min=1, help="Maximum number of epochs of a fine-tuning.", show_default="10"
    ),
    patience: int | None = typer.Option(
        None, min=1, help="Epochs without a better score after which a fine-tuning stops.", show_default="3"
    ),
    batch_size: int | None = typer.Option(None, min=1, help="Number of examples in a batch.", show_default="16"),
    learning_rate: float | None = typer.Option(
        None, help="Learning rate at the end of the warm-up.", show_default="5e-5"
    ),
    max_length: int | None = typer.Option(
        None, min=8, help="Maximum number of tokens in an example.", show_default="128"
    ),
    max_train: int | None = typer.Option(
        None, min=1, help="Use at most this many training examples.", show_default="all"
    ),
    max_test: int | None = typer.Option(None, min=1, help="Use at most this many test examples.", show_default="all"),
    random_start: bool = typer.Option(
        False,
        "--random-start",
        help="Also evaluate the first checkpoint's architecture with random weights.",
    ),
    save: Path | None = typer.Option(
        None,
        help="Save the first checkpoint's fine-tuned model, from the seed with the best "
        "development score, in this folder; it must be empty or not exist.",
    ),
    as_markdown: bool = typer.Option(False, "--markdown", help="Print the table as Markdown."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Evaluate checkpoints on one task, or on all tasks of a run file: fine-tune with several seeds and compare."""
    if sum(map(bool, (config, task, preset))) != 1:
        raise ConfigError("Name either one task with `--task` or `--preset`, or a run file with `--config`.")
    if save is not None:
        require_free(save)
    places = {"train": train, "dev": dev, "test": test, "queries": queries, "corpus": corpus}
    recipe: dict[str, object] = {
        "seeds": None if seeds is None else list(range(seeds)),
        "epochs": epochs,
        "patience": patience,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "max_train": max_train,
        "max_test": max_test,
    }
    if config is not None:
        _refuse_beside_config({"data": data, **places, "metric": metric, **recipe})
        tasks, base = _tasks_of(config), config.absolute().parent
    else:
        columns = {"text": text_column, "pair": pair_column, "label": label_column}
        tasks, base = (make_task(task, places, columns, metric, recipe, preset, data),), Path.cwd()
    named = [(text.rstrip("/"), _source(text)) for text in checkpoint]
    folders = DataFolders(base, user_cache_path("manyhands") / "examples")
    check_readable(tasks, folders)
    contestants = [
        Contestant(name, _results(source, tasks, folders, save=None if place else save))
        for place, (name, source) in enumerate(named)
    ]
    if random_start:
        contestants.append(Contestant(RANDOM_START, _results(named[0][1], tasks, folders, fresh=True)))
    if as_json:
        say_json([each.facts for each in contestants])
    elif as_markdown:
        say(markdown(contestants))
    else:
        _show(contestants)


def make_task(
    kind: str,
    places: Mapping[str, str],
    columns: Mapping[str, str],
    metric: str,
    recipe: Mapping[str, object],
    preset: str = "",
    data: Path | None = None,
) -> Task:
    """Build a task from command options. Raises `ConfigError` if an option is missing or invalid.

    A preset determines the kind and the default columns and metric; the folder `data` provides the
    default files.
    """
    places = {**(files_of(data) if data else {}), **{key: value for key, value in places.items() if value}}
    if preset:
        known = preset_of(preset)
        kind, metric = known.kind, metric or known.metric
        columns = {**known.columns_in(places.values()), **{key: value for key, value in columns.items() if value}}
    if kind not in METRICS:
        raise ConfigError(f"`--task` ({kind}) must be one of: {', '.join(METRICS)}.")
    if not places.get("test"):
        raise ConfigError("`--test` is missing: the examples to judge by.")
    if kind not in MAY_BE_UNTRAINED and not places.get("train"):
        raise ConfigError(f"`--train` is missing: a task of kind {kind} is fine-tuned.")
    content: dict[str, object] = {
        **places,
        "name": preset or kind,
        "kind": kind,
        "metric": metric or None,
        "columns": Columns(**{key: _column(value) for key, value in columns.items() if value}),
        "recipe": {key: value for key, value in recipe.items() if value is not None},
    }
    try:
        return Task.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{first_mistake(error)}.") from error


def _column(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdigit() else text


def _refuse_beside_config(options: Mapping[str, object]) -> None:
    """Raise `ConfigError` if an option for a single task is combined with a run file."""
    for name, value in options.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"`{option}` is for one task, named with `--task`: with `--config` the run file says it.")


def _tasks_of(config: Path) -> tuple[Task, ...]:
    tasks = RunConfig.from_yaml(config).evaluation.tasks
    if not tasks:
        raise ConfigError(f"{config} names no tasks: add them under `evaluation`.")
    return tasks


def _source(text: str) -> str:
    """Return the model to load: a run's newest checkpoint, a folder, or a model on the Hub."""
    path = Path(text)
    if (path / "checkpoints").is_dir():
        newest = newest_verified(path / "checkpoints")
        if newest is None:
            raise ConfigError(f"{path} has no checkpoint yet.")
        path = newest.path
    if path.is_dir():
        return str(path.absolute())
    require_model(text)
    return text


def _results(
    source: str, tasks: Sequence[Task], folders: DataFolders, *, fresh: bool = False, save: Path | None = None
) -> dict[str, TaskResult]:
    """Run all tasks on a checkpoint, or on random weights if `fresh`; save fine-tuned models in `save`."""
    results = {}
    for task in tasks:
        folder = ""
        if save is not None and (task.is_trained or task.kind == "retrieval"):
            folder = str(save / task.name if len(tasks) > 1 else save)
        results[task.name] = run_apart(Plan(source, task, folders, fresh, folder))
    return results


def _show(contestants: Sequence[Contestant]) -> None:
    if len(contestants) > 1:
        say_table(headings(contestants), table_rows(contestants))
    for each in contestants:
        for result in each.results.values():
            if len(contestants) == 1:
                trials = f"{len(result.converged)} of {len(result.seeds)} trials count"
                say(f"{result.task}: {result.examples:,} examples, {trials}")
                scores = [(name, score_text(result, name)) for name in result.metrics if result.values(name)]
                say_table(("metric", "score"), scores)
            _show_details(each.name, result)


def _show_details(checkpoint: str, result: TaskResult) -> None:
    if classes := class_rows(result):
        say(f"{checkpoint}, {result.task}: entities by class")
        say_table(CLASS_HEADINGS, classes)
    for seed in result.failures:
        say(f"{checkpoint}, {result.task}, seed {seed.seed} did not converge: {seed.failure}.")
    for probe in result.probes:
        say(f"{checkpoint}: {probe.template} (distance {probe.distance:.4f})")
        columns = [[f"{each.token} {each.probability:.4f}" for each in group] for group in probe.fillings]
        say_table(probe.groups, list(zip(*columns, strict=True)))


@dataclass(frozen=True)
class Contestant:
    """The results of one checkpoint by task."""

    name: str
    results: Mapping[str, TaskResult]

    @property
    def facts(self) -> dict[str, Any]:
        """The checkpoint and its results by field name, with means and standard deviations."""
        tasks = {
            name: {
                **result.model_dump(mode="json"),
                "mean": result.mean(),
                "std": result.std(),
                "metrics": result.measures(),
            }
            for name, result in self.results.items()
        }
        return {"checkpoint": self.name, "tasks": tasks}


def headings(contestants: Sequence[Contestant]) -> list[str]:
    """Return the table headings: `checkpoint`, then each task with its main metric."""
    tasks = {name: result.metric for each in contestants for name, result in each.results.items()}
    return ["checkpoint", *(f"{name} ({metric})" for name, metric in tasks.items())]


def table_rows(contestants: Sequence[Contestant]) -> list[list[str]]:
    """Return one table row for each checkpoint; a star marks the best mean of each task."""
    best = {name: best_of(contestants, name) for each in contestants for name in each.results}

    def cell(contestant: Contestant, task: str) -> str:
        result = contestant.results.get(task)
        return ("-" if result is None else score_text(result)) + (" *" if best[task] is contestant else "")

    return [[each.name, *(cell(each, task) for task in best)] for each in contestants]


def best_of(contestants: Sequence[Contestant], task: str) -> Contestant | None:
    """Return the contestant with the best mean, or None if fewer than two have results."""
    with_mean = [
        (mean if result.higher_is_better else -mean, each)
        for each in contestants
        if (result := each.results.get(task)) is not None and (mean := result.mean()) is not None
    ]
    return max(with_mean, key=lambda pair: pair[0])[1] if len(with_mean) > 1 else None


def markdown(contestants: Sequence[Contestant]) -> str:
    """Return the table in Markdown, followed by a table of entity classes for each checkpoint."""
    parts = [_markdown_table(headings(contestants), table_rows(contestants))]
    for each in contestants:
        for result in each.results.values():
            if classes := class_rows(result):
                parts.append(f"{each.name}, {result.task}: entities by class")
                parts.append(_markdown_table(CLASS_HEADINGS, classes))
    return "\n\n".join(parts)


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
