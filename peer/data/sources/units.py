"""Units, the parts of a source, and the order in which each device reads them.

A unit is a file or part of a file: a range of bytes, a Parquet row group, or every k-th record.
`peer.data.sources.reader` reads units. `peer.data.sources.files` implements sources of text,
`peer.data.sources.parquet` Parquet, and `peer.data.sources.datasets` the hub's datasets.

The built-in corpus is defined here: Python's own documentation, which is installed on every machine
that runs manyhands. It consists of the language reference's topics (`pydoc_data.topics`) and the
standard library's long docstrings, about half a million tokens. The library is parsed, never
imported: importing runs code, opens files and differs between platforms.
"""

from __future__ import annotations

import ast
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# The multiples of the golden ratio modulo one are spread evenly over [0, 1).
GOLDEN_RATIO = (5**0.5 - 1) / 2
File = TypeVar("File")
Answer = TypeVar("Answer")
State = Mapping[str, Any]  # a record's position in its unit; JSON values only
Record = str | None  # a document; empty if it is not wanted, None if the record is damaged
MANY_FILES = 64  # number of files above which files are neither divided nor inspected
ASKED_AT_ONCE = 8
MIN_UNITS = 16  # minimum number of units per source
MIN_DOCSTRING_CHARACTERS = 200  # shorter docstrings are skipped, because they are hardly prose
SHARD_DOCUMENTS = 64
# Folders excluded from the built-in corpus: tests, vendored wheels, character tables, and the
# topics, which are read separately.
SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data"}
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class UnitReader(ABC):
    """An iterator over one unit's records in order; close it after use."""

    _records: Generator[Record, None, None]

    def __iter__(self) -> Iterator[Record]:
        return self._records

    @abstractmethod
    def state(self) -> State:
        """Return the position of the next record, even after an error."""

    def close(self) -> None:
        """Close the unit's file."""
        self._records.close()


@dataclass(frozen=True)
class Shard:
    """An independently readable part of a source: a file, a range of bytes, a row group."""

    name: str  # the shard's name in messages
    # Opens, at a saved state, a reader of the records whose index modulo `parts` is `part`. Raises
    # errors on opening or while reading.
    open: Callable[[int, int, State | None], UnitReader]


class Units:
    """A source as a sequence of units, equal on all machines: its shards, divided if there are few.

    Reading a part of a shard requires reading all of it. With `whole`, a shard is one unit.
    """

    def __init__(self, shards: Sequence[Shard], *, whole: bool = False) -> None:
        self._shards = shards
        self._parts = 1 if whole else -(-MIN_UNITS // len(shards))

    def __len__(self) -> int:
        return len(self._shards) * self._parts

    def name(self, unit: int) -> str:
        """Return the unit's name, for use in messages."""
        return self._shards[unit // self._parts].name

    def open(self, unit: int, state: State | None) -> UnitReader:
        """Open a unit at a saved state or at the start; errors are raised here or while reading."""
        shard, part = divmod(unit, self._parts)
        return self._shards[shard].open(part, self._parts, state)


class CountedReader(UnitReader):
    """A reader of every `parts`-th record from `part` on; its state is the next record's number."""

    def __init__(
        self, records_from: Callable[[int], Iterator[Record]], part: int, parts: int, state: State | None
    ) -> None:
        self._number = 0 if state is None else int(state["number"])
        self._records = self._read(records_from(self._number), part, parts)

    def state(self) -> State:
        return {"number": self._number}

    def _read(self, records: Iterator[Record], part: int, parts: int) -> Generator[Record, None, None]:
        for number, record in enumerate(records, self._number):
            self._number = number + 1
            if number % parts == part:
                yield record


def ask_each(files: Sequence[File], ask: Callable[[File], Answer]) -> list[Answer | None]:
    """Return `ask`'s result per file, or None on failure. Raises the first error if all fail."""

    def answer(file: File) -> Answer | Exception:
        try:
            return ask(file)
        except Exception as error:  # noqa: BLE001 - reported by the reader of the file
            return error

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = list(pool.map(answer, files))
    errors = [each for each in found if isinstance(each, Exception)]
    if len(errors) == len(files):
        raise errors[0]
    return [None if isinstance(each, Exception) else each for each in found]


def deal_units(units: int, device_number: int, seed: tuple[int, ...], epoch: int) -> NDArray[np.int64]:
    """Return the unit numbers (units,) in a common cyclic order, rotated for each device.

    Devices therefore read different units at the same time and together cover all units evenly,
    without communicating or knowing the number of devices.
    """
    order = np.random.default_rng((*seed, epoch)).permutation(units)
    begin = int(device_number * GOLDEN_RATIO % 1.0 * units)
    return np.roll(order, -begin)


def shard_of(name: str, documents: Sequence[str]) -> Shard:
    """Return a shard of documents in memory."""
    return Shard(name, partial(CountedReader, lambda first: iter(documents[first:])))


def builtin_shards() -> list[Shard]:
    """Return the built-in corpus in shards of `SHARD_DOCUMENTS` documents."""
    documents = builtin_documents()
    starts = enumerate(range(0, len(documents), SHARD_DOCUMENTS))
    return [
        shard_of(f"part {number} of the built-in corpus", documents[start : start + SHARD_DOCUMENTS])
        for number, start in starts
    ]


@cache
def builtin_documents() -> tuple[str, ...]:
    """Return the built-in corpus's distinct documents; the order depends on the Python version."""
    library = Path(sysconfig.get_paths()["stdlib"])
    documents = [topics[name] for name in sorted(topics)]
    for path in sorted(library.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(library).parts):
            documents.extend(long_docstrings(path.read_bytes()))
    return tuple(dict.fromkeys(documents))


def long_docstrings(source: bytes) -> Iterator[str]:
    """Yield a module's docstrings that are long enough to be prose; none if it cannot be parsed."""
    if b'"""' not in source and b"'''" not in source:  # no docstring: skip the expensive parsing
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a template, or a fixture with another version's syntax
        return
    for node in _definitions(tree):
        docstring = ast.get_docstring(node)
        if docstring is not None and len(docstring) > MIN_DOCSTRING_CHARACTERS:
            yield docstring


def _definitions(node: Documented) -> Iterator[Documented]:
    """Yield a syntax tree node and the classes and functions in it, depth first."""
    yield node
    for statement in node.body:
        if isinstance(statement, Documented):
            yield from _definitions(statement)
