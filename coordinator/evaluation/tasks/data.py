"""The examples of a task, read from a file, the web or the Hugging Face Hub in the form of the task's kind.

Files may be plain or gzip. One from the web must have the digest that the run file gives, and is downloaded once.
`coordinator.evaluation.tasks.examples` parses the formats.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auth.errors import ConfigError
from auth.files import make_private_directory, write_private
from coordinator.evaluation.tasks.examples import (
    classified,
    hub_rows,
    questions,
    read_conll,
    read_documents,
    read_judgements,
    read_probes,
    read_rows,
    read_squad,
    read_texts,
    tagged,
    text_pairs,
)
from peer.config.evaluation import HUB, Columns, Examples, Task, is_web
from peer.network.http import fetch

MAX_FILE_BYTES = 512 * 2**20
TEXT_COLUMN = "text"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class DataFolders:
    """The folders that relative paths start from and that downloaded files are kept in."""

    base: Path
    cache: Path
    confined: bool = False  # to `base`, as somebody else wrote the paths


def judged_examples(task: Task, place: DataFolders) -> list[Any]:
    """The examples of the test set; raises `ConfigError`."""
    return _read_split(task, task.test, "test", task.recipe.max_test, place)


def train_examples(task: Task, place: DataFolders) -> list[Any]:
    """The examples of the training set."""
    assert task.train is not None  # `Task` sees to it
    return _read_split(task, task.train, "train", task.recipe.max_train, place)


def dev_examples(task: Task, place: DataFolders) -> list[Any] | None:
    """The examples of the development set, which end training and choose checkpoints; None if the task has none."""
    return None if task.dev is None else _read_split(task, task.dev, "validation", task.recipe.max_test, place)


def check_readable(tasks: Sequence[Task], place: DataFolders) -> None:
    """Read all files of all tasks once, so that a mistake is told before anything is computed; raises `ConfigError`."""
    for task in tasks:
        judged_examples(task, place)
        dev_examples(task, place)
        if task.is_trained:
            train_examples(task, place)


def read_text(examples: Examples, base: Path, cache: Path, *, confined: bool = False) -> str:
    """The file's text, unpacked; a path is relative to `base`, a web address is fetched once into `cache`.

    `confined`: somebody else wrote the path, so it may not leave `base`. Raises `ConfigError` for a file that is
    missing, not what its digest says, or no UTF-8 text.
    """
    inside = (base / examples.path).resolve().is_relative_to(base.resolve())
    if confined and not is_web(examples.path) and not inside:
        raise ConfigError(f"{examples.path} is outside of {base}: a task from elsewhere may only name files within it.")
    raw = _fetched(examples, cache) if is_web(examples.path) else _read(base / examples.path)
    if examples.sha256 is not None and hashlib.sha256(raw).hexdigest() != examples.sha256:
        raise ConfigError(f"{examples.path} is not the file that `sha256` ({examples.sha256[:12]}...) names.")
    try:
        content = _unpacked(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{examples.path} is damaged: it cannot be unpacked ({error}).") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{examples.path}, line {line} is not UTF-8 text: convert the file.") from error


def _read_split(task: Task, where: Examples, split: str, limit: int | None, place: DataFolders) -> list[Any]:
    if task.kind == "retrieval" and split != "train":
        return _judgements(task, where, limit, place)
    if where.path.startswith(HUB):
        if place.confined:
            _require_name(where.path.removeprefix(HUB))
        return _of_hub(task, where, split, limit)
    return _OF_FILES[task.kind](
        read_text(where, place.base, place.cache, confined=place.confined), where.path, task.columns
    )[:limit]


def _judgements(task: Task, where: Examples, limit: int | None, place: DataFolders) -> list[Any]:
    """The retrieval set of a table of judgements, as a list of one."""
    assert task.queries is not None  # `Task` sees to it
    assert task.corpus is not None
    places = (where, task.queries, task.corpus)
    for each in places:
        if each.path.startswith(HUB):
            raise ConfigError(f"The task `{task.name}` needs files: {each.path} is a dataset of the hub.")
    judgements, queries, corpus = (read_text(each, place.base, place.cache, confined=place.confined) for each in places)
    documents = read_documents(queries, task.queries.path), read_documents(corpus, task.corpus.path)
    return [read_judgements(judgements, where.path, *documents, limit)]


def _require_name(name: str) -> None:
    """Raise `ConfigError` for what `datasets` would take for a folder of this machine."""
    if not _HUB_NAME.fullmatch(name) or Path(name).exists():
        raise ConfigError(
            f"{name!r:.80} is no dataset's name on the hub, and a task from elsewhere may name nothing else."
        )


def _of_hub(task: Task, where: Examples, split: str, limit: int | None) -> list[Any]:
    if task.kind == "bias":
        raise ConfigError(f"The task `{task.name}` needs a file of templates, not a dataset of the hub.")
    rows = hub_rows(where, split, limit)
    if task.kind in {"ner", "pos"}:
        return list(tagged(rows, task.columns))
    if task.kind == "qa":
        return list(questions(rows))
    if task.kind == "retrieval":
        return list(text_pairs(rows, task.columns))
    if task.kind == "classification":
        return list(classified(rows, task.columns))
    column = str(task.columns.text or TEXT_COLUMN)
    return [str(row[column]) for _, row in rows if row.get(column)]


def _conll(text: str, origin: str, columns: Columns) -> list[Any]:
    if text.lstrip("\ufeff \n").startswith('{"'):
        return list(tagged(read_rows(text, origin), columns))
    words, tags = columns.text, columns.label
    if isinstance(words, str) or isinstance(tags, str):
        raise ConfigError(
            f"The columns of {origin}, a CoNLL file, are numbers from 0, not names ({words!r}, {tags!r})."
        )
    return list(read_conll(text, origin, words, tags))


def _squad(text: str, origin: str, _columns: Columns) -> list[Any]:
    """The questions of SQuAD's JSON, or of JSON Lines with the columns of its datasets."""
    try:
        is_lines = "context" in json.loads(text.lstrip("\ufeff\n").partition("\n")[0])
    except (ValueError, TypeError, RecursionError):
        is_lines = False
    return list(questions(read_rows(text, origin)) if is_lines else read_squad(text, origin))


def _classified(text: str, origin: str, columns: Columns) -> list[Any]:
    return list(classified(read_rows(text, origin), columns))


_OF_FILES: dict[str, Callable[[str, str, Columns], list[Any]]] = {
    "ner": _conll,
    "pos": _conll,
    "classification": _classified,
    "retrieval": lambda text, origin, columns: list(text_pairs(read_rows(text, origin), columns)),
    "qa": _squad,
    "fill-mask": lambda text, origin, _columns: list(read_texts(text, origin)),
    "bias": lambda text, origin, _columns: list(read_probes(text, origin)),
}


def _unpacked(raw: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise EOFError(f"it has more than {MAX_FILE_BYTES // 2**20} MiB")
    return content


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES // 2**20} MiB: take a part of it.")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Cannot read the examples in {path}: {error.strerror}.") from error


def _fetched(examples: Examples, cache: Path) -> bytes:
    """The file at a web address, which has a digest; kept by that."""
    assert examples.sha256 is not None  # `Examples` sees to it
    kept = cache / examples.sha256
    if kept.is_file():
        return _read(kept)
    raw = fetch(examples.path, MAX_FILE_BYTES)
    if hashlib.sha256(raw).hexdigest() == examples.sha256:
        make_private_directory(cache)
        write_private(kept, raw)
    return raw
