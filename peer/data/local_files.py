"""Documents in files on this machine: plain text (a blank line ends a document) and JSON Lines, gzipped or not.

Files are mapped, not read, and documents are decoded one by one when they are asked for, so that a corpus of many
gigabytes costs sixteen bytes of memory per document. Only a gzipped file is held in memory, unpacked.
"""

from __future__ import annotations

import gzip
import json
import logging
import mmap
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import overload

from auth.errors import ConfigError

logger = logging.getLogger(__name__)
Decoder = Callable[[bytes], str]
PARAGRAPHS = re.compile(rb"\S[^\n]*(?:\n[^\n]*\S[^\n]*)*")  # lines that hold something, up to a blank one
LINES = re.compile(rb"[^\r\n]+")


class FileDocuments(Sequence[str]):
    """The documents of one file, found by `pattern` and made text by `decode`."""

    def __init__(self, path: Path, pattern: re.Pattern[bytes], decode: Decoder) -> None:
        self._buffer = _contents(path)
        self._decode = decode
        self._spans = array("q")  # start, end, start, end, ... in bytes
        for match in pattern.finditer(self._buffer):
            self._spans.extend(match.span())

    def __len__(self) -> int:
        return len(self._spans) // 2

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = self._spans[2 * index : 2 * index + 2]
        return self._decode(self._buffer[start:end])


class Concatenated(Sequence[str]):
    """Several files as one sequence."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = bisect_right(self._ends, index)
        return self._parts[part][index - (self._ends[part - 1] if part else 0)]


def text_documents(path: str) -> Sequence[str]:
    """The paragraphs of plain-text files: `path` is a file, a folder or a pattern; raises `ConfigError`."""
    files = _files(path, ("*.txt", "*.txt.gz"))
    return Concatenated([FileDocuments(file, PARAGRAPHS, _decode_text) for file in files])


def jsonl_documents(path: str, text_field: str) -> Sequence[str]:
    """The `text_field` of each line of JSON Lines files; raises `ConfigError` where the first line has none."""
    files = _files(path, ("*.jsonl", "*.jsonl.gz"))

    def decode(line: bytes) -> str:
        text = _field(line, text_field)
        if text is None:
            logger.warning("Skipped a line of %s that is no JSON object with a text `%s`.", path, text_field)
        return text or ""

    documents = [FileDocuments(file, LINES, decode) for file in files]
    for file, lines in zip(files, documents, strict=True):
        if len(lines) and not lines[0]:
            raise ConfigError(
                f"The first line of {file} is no JSON object with a text `{text_field}`: set `text_field`."
            )
    return Concatenated(documents)


def _field(line: bytes, name: str) -> str | None:
    """One field of a JSON object, if the line is one and the field holds text."""
    try:
        record = json.loads(line)
    except ValueError:  # includes bytes that are not UTF-8
        return None
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, str) else None


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _files(path: str, suffixes: Sequence[str]) -> list[Path]:
    """The files that `path` (a file, a folder or a pattern) names, sorted so that every device counts them alike."""
    folder = Path(path)
    if folder.is_dir():
        found = sorted(file for pattern in suffixes for file in folder.glob(pattern))
    else:
        # `Path.glob` takes relative patterns only.
        matches = Path(folder.anchor).glob(str(folder.relative_to(folder.anchor)))
        found = sorted(match for match in matches if match.is_file())
    if not found:
        raise ConfigError(f"No file on this machine matches the data source `{path}`: check its `path`.")
    return found


def _contents(path: Path) -> bytes | mmap.mmap:
    try:
        if path.suffix == ".gz":
            return gzip.decompress(path.read_bytes())
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    except (OSError, EOFError) as error:
        raise ConfigError(f"Cannot read the data source {path}: {error}.") from error
