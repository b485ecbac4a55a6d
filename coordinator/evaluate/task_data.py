"""A task's examples, read from wherever its configuration says, in the form of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auth.errors import ConfigError
from coordinator.evaluate import hub_examples
from coordinator.evaluate.conll import read_conll
from coordinator.evaluate.examples import classified, read_probes, read_rows, read_squad, read_texts
from coordinator.evaluate.files import read_text
from peer.config.evaluation import HUB, Columns, Examples, Task

TEXT_COLUMN = "text"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class Place:
    """Where relative paths begin, and where files of the web are kept."""

    base: Path
    cache: Path
    confined: bool = False  # to `base`, as somebody else wrote the paths


def judged_examples(task: Task, place: Place) -> list[Any]:
    """Those that are judged; raises `ConfigError`."""
    return _read(task, task.test, "test", task.recipe.max_test, place)


def train_examples(task: Task, place: Place) -> list[Any]:
    """Those that are trained on."""
    assert task.train is not None  # `Task` sees to it
    return _read(task, task.train, "train", task.recipe.max_train, place)


def dev_examples(task: Task, place: Place) -> list[Any] | None:
    """Those by which it is decided when to stop, where they are given."""
    return None if task.dev is None else _read(task, task.dev, "validation", task.recipe.max_test, place)


def _read(task: Task, where: Examples, split: str, limit: int | None, place: Place) -> list[Any]:
    if where.path.startswith(HUB):
        if place.confined:
            _require_name(where.path.removeprefix(HUB))
        return _of_hub(task, where, split, limit)
    return _OF_FILES[task.kind](
        read_text(where, place.base, place.cache, confined=place.confined), where.path, task.columns
    )[:limit]


def _require_name(name: str) -> None:
    """Raise `ConfigError` for what `datasets` would take for a folder of this machine."""
    if not _HUB_NAME.fullmatch(name) or Path(name).exists():
        raise ConfigError(
            f"{name!r:.80} is no dataset's name on the hub, and a task from elsewhere may name nothing else."
        )


def _of_hub(task: Task, where: Examples, split: str, limit: int | None) -> list[Any]:
    if task.kind == "bias":
        raise ConfigError(f"The task `{task.name}` needs a file of templates, not a dataset of the hub.")
    rows = hub_examples.hub_rows(where, split, limit)
    if task.kind in {"ner", "pos"}:
        return list(hub_examples.tagged(rows, task.columns))
    if task.kind == "qa":
        return list(hub_examples.questions(rows))
    if task.kind == "classification":
        return list(classified(rows, task.columns))
    column = str(task.columns.text or TEXT_COLUMN)
    return [str(row[column]) for _, row in rows if row.get(column)]


def _conll(text: str, origin: str, columns: Columns) -> list[Any]:
    words, tags = columns.text or 0, -1 if columns.label is None else columns.label
    if not isinstance(words, int) or not isinstance(tags, int):
        raise ConfigError(
            f"The columns of {origin}, a CoNLL file, are numbers from 0, not names ({words!r}, {tags!r})."
        )
    return list(read_conll(text, origin, words, tags))


def _classified(text: str, origin: str, columns: Columns) -> list[Any]:
    return list(classified(read_rows(text, origin), columns))


_OF_FILES: dict[str, Callable[[str, str, Columns], list[Any]]] = {
    "ner": _conll,
    "pos": _conll,
    "classification": _classified,
    "qa": lambda text, origin, _columns: list(read_squad(text, origin)),
    "fill-mask": lambda text, origin, _columns: list(read_texts(text, origin)),
    "bias": lambda text, origin, _columns: list(read_probes(text, origin)),
}


def check_readable(tasks: Sequence[Task], place: Place) -> None:
    """Read all files of all tasks once, so that a mistake is told before anything is computed; raises `ConfigError`."""
    for task in tasks:
        judged_examples(task, place)
        if task.is_trained:
            train_examples(task, place)
            dev_examples(task, place)
