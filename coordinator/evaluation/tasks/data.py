"""Readers for a task's examples in a file, on the web or on the Hugging Face Hub.

Files may be gzipped. A file from the web is downloaded once and must match the digest in the run
file. `coordinator.evaluation.tasks.examples` parses the formats.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
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
    """The base folder of relative paths, and the cache folder of downloaded files."""

    base: Path
    cache: Path
    confined: bool = False  # reject paths outside `base`; set if another machine sent the task


def check_readable(tasks: Sequence[Task], place: DataFolders) -> None:
    """Read every file of every task; raises `ConfigError` if one is invalid."""
    for task in tasks:
        for split in ("test", "dev", "train"):
            read_split(task, split, place)


def read_split(task: Task, split: str, place: DataFolders) -> list[Any] | None:
    """Return the examples of a split (`train`, `dev`, `test`), or None if the task lacks the split.

    `dev` is used for early stopping and for selecting the epoch. In retrieval tasks, `dev` and
    `test` are lists of one `RetrievalSet`. Raises `ConfigError` if the data is invalid.
    """
    where: Examples | None = getattr(task, split)
    limit = task.recipe.max_train if split == "train" else task.recipe.max_test
    if where is None:
        return None
    if task.kind == "retrieval" and split != "train":
        return [_retrieval_set(task, where, limit, place)]
    if not where.path.startswith(HUB):
        return _parsed(task.kind, read_text(where, place), where.path, task.columns)[:limit]
    name = where.path.removeprefix(HUB)
    if place.confined and (not _HUB_NAME.fullmatch(name) or Path(name).exists()):  # reject local folders
        raise ConfigError(
            f"{name!r:.80} is no dataset's name on the hub, and a task from elsewhere may name nothing else."
        )
    if task.kind not in _FROM_ROWS:
        raise ConfigError(f"The task `{task.name}` needs a file of templates, not a dataset of the hub.")
    return _FROM_ROWS[task.kind](hub_rows(where, "validation" if split == "dev" else split, limit), task.columns)


def read_text(examples: Examples, place: DataFolders) -> str:
    """Read and decompress a text file; files from the web are downloaded once into `place.cache`.

    Raises `ConfigError` if the file is missing, is not text or has a wrong digest.
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
    assert task.queries is not None  # validated by `Task`
    assert task.corpus is not None
    for each in (judgements, task.queries, task.corpus):
        if each.path.startswith(HUB):
            raise ConfigError(f"The task `{task.name}` needs files: {each.path} is a dataset of the hub.")
    queries, corpus = (read_documents(read_text(each, place), each.path) for each in (task.queries, task.corpus))
    return read_judgements(read_text(judgements, place), judgements.path, queries, corpus, limit)


def _parsed(kind: str, text: str, origin: str, columns: Columns) -> list[Any]:
    """Parse a file: JSON Lines and tables by column name, other formats by the task's `kind`."""
    if kind == "fill-mask":
        return read_texts(text, origin)
    if kind == "bias":
        return read_probes(text, origin)
    if kind in {"ner", "pos"} and not text.lstrip("\ufeff \n").startswith('{"'):
        return read_conll(text, origin, columns)
    if kind == "qa" and not _has_contexts(text):
        return read_squad(text, origin)
    return _FROM_ROWS[kind](read_rows(text, origin), columns)


def _has_contexts(text: str) -> bool:
    """Return whether the text is JSON Lines with SQuAD's columns, rather than SQuAD's nested JSON."""
    try:
        return "context" in json.loads(text.lstrip("\ufeff\n").partition("\n")[0])
    except (ValueError, TypeError, RecursionError):
        return False


_FROM_ROWS: Mapping[str, Callable[[list[PlacedRow], Columns], list[Any]]] = {
    "ner": tagged,
    "pos": tagged,
    "classification": classified,
    "retrieval": text_pairs,
    "qa": lambda rows, _columns: questions(rows),
    "fill-mask": texts,
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
    """Read a web file from the cache, where the file name is the digest, or download the file."""
    assert examples.sha256 is not None  # validated by `Examples`
    kept = cache / examples.sha256
    if kept.is_file():
        return _read(kept)
    raw = fetch(examples.path, MAX_FILE_BYTES)
    if hashlib.sha256(raw).hexdigest() == examples.sha256:
        make_private_directory(cache)
        write_private(kept, raw)
    return raw
