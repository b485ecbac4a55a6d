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
    PlacedRow,
    RetrievalSet,
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
    texts,
)
from peer.config.evaluation import HUB, Columns, Examples, Task, is_web
from peer.network.http import fetch

MAX_FILE_BYTES = 512 * 2**20
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class DataFolders:
    """The folders that relative paths start from and that downloaded files are kept in."""

    base: Path
    cache: Path
    confined: bool = False  # to `base`, as somebody else wrote the paths


def check_readable(tasks: Sequence[Task], place: DataFolders) -> None:
    """Read all files of all tasks once, so that a mistake is told before anything is computed; raises `ConfigError`."""
    for task in tasks:
        for split in ("test", "dev", "train"):
            read_split(task, split, place)


def read_split(task: Task, split: str, place: DataFolders) -> list[Any] | None:
    """The examples of `train`, `dev` or `test`; None if the task has none there. Raises `ConfigError`.

    The development set ends training and chooses checkpoints. For retrieval it is, as `test` is, a list of one set.
    """
    where: Examples | None = getattr(task, split)
    limit = task.recipe.max_train if split == "train" else task.recipe.max_test
    if where is None:
        return None
    if task.kind == "retrieval" and split != "train":
        return [_retrieval_set(task, where, limit, place)]
    form = _FORMS[task.kind]
    if not where.path.startswith(HUB):
        return form.of_file(read_text(where, place), where.path, task.columns)[:limit]
    name = where.path.removeprefix(HUB)
    if place.confined and (not _HUB_NAME.fullmatch(name) or Path(name).exists()):  # `datasets` also takes folders
        raise ConfigError(
            f"{name!r:.80} is no dataset's name on the hub, and a task from elsewhere may name nothing else."
        )
    if form.of_rows is None:
        raise ConfigError(f"The task `{task.name}` needs a file of templates, not a dataset of the hub.")
    return form.of_rows(hub_rows(where, "validation" if split == "dev" else split, limit), task.columns)


def read_text(examples: Examples, place: DataFolders) -> str:
    """The file's text, unpacked. Raises `ConfigError` for a file that is missing, not what its digest says, or no text.

    A path is relative to `place.base`, and a web address is fetched once into `place.cache`.
    """
    path = place.base / examples.path
    if is_web(examples.path):
        raw = _fetched(examples, place.cache)
    elif place.confined and not path.resolve().is_relative_to(place.base.resolve()):
        raise ConfigError(
            f"{examples.path} is outside of {place.base}: a task from elsewhere may only name files within it."
        )
    else:
        raw = _read(path)
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


def _retrieval_set(task: Task, judgements: Examples, limit: int | None, place: DataFolders) -> RetrievalSet:
    assert task.queries is not None  # `Task` sees to it
    assert task.corpus is not None
    for each in (judgements, task.queries, task.corpus):
        if each.path.startswith(HUB):
            raise ConfigError(f"The task `{task.name}` needs files: {each.path} is a dataset of the hub.")
    queries, corpus = (read_documents(read_text(each, place), each.path) for each in (task.queries, task.corpus))
    return read_judgements(read_text(judgements, place), judgements.path, queries, corpus, limit)


def _tagged_file(text: str, origin: str, columns: Columns) -> list[Any]:
    if text.lstrip("\ufeff \n").startswith('{"'):
        return tagged(read_rows(text, origin), columns)
    words, tags = columns.text, columns.label
    if isinstance(words, str) or isinstance(tags, str):
        raise ConfigError(
            f"The columns of {origin}, a CoNLL file, are numbers from 0, not names ({words!r}, {tags!r})."
        )
    return read_conll(text, origin, words, tags)


def _squad_file(text: str, origin: str, _columns: Columns) -> list[Any]:
    """The questions of SQuAD's JSON, or of JSON Lines with the columns of its datasets."""
    try:
        is_lines = "context" in json.loads(text.lstrip("\ufeff\n").partition("\n")[0])
    except (ValueError, TypeError, RecursionError):
        is_lines = False
    return questions(read_rows(text, origin)) if is_lines else read_squad(text, origin)


@dataclass(frozen=True)
class _Form:
    """The readers of a kind's examples: from the text of a file, and from the rows of a dataset if it may be one."""

    of_file: Callable[[str, str, Columns], list[Any]]
    of_rows: Callable[[list[PlacedRow], Columns], list[Any]] | None


_FORMS = {
    "ner": _Form(_tagged_file, tagged),
    "pos": _Form(_tagged_file, tagged),
    "classification": _Form(lambda text, origin, names: classified(read_rows(text, origin), names), classified),
    "retrieval": _Form(lambda text, origin, names: text_pairs(read_rows(text, origin), names), text_pairs),
    "qa": _Form(_squad_file, lambda rows, _: questions(rows)),
    "fill-mask": _Form(lambda text, origin, _: read_texts(text, origin), texts),
    "bias": _Form(lambda text, origin, _: read_probes(text, origin), None),
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
