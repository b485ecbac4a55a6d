"""Units, the parts of a source, and the order in which a device takes them up, so that devices read different ones.

A unit is a file or a part of one: a range of bytes, a Parquet row group, every k-th record. `peer.data.sources.reader`
reads units. Of the kinds of sources, text is in `peer.data.sources.files`, Parquet in
`peer.data.sources.parquet`, and the hub's datasets in `peer.data.sources.datasets`.

The last kind is here: prose that needs no download, Python's own documentation, as installed on every machine that
runs manyhands. It is the language reference's topics (`pydoc_data.topics`) and the standard library's long docstrings,
about half a million tokens. The library is parsed, never imported: importing runs code, opens files and differs between
platforms.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Its multiples, modulo one, spread evenly over [0, 1) however many there are.
GOLDEN_RATIO = (5**0.5 - 1) / 2
File = TypeVar("File")
Answer = TypeVar("Answer")
State = Mapping[str, Any]  # where a record stands in its unit; JSON values only
Record = str | None  # a document; empty where it is not wanted, None where the record is damaged
MANY_FILES = 64  # so many need not be divided, nor asked about anything
ASKED_AT_ONCE = 8
MIN_UNITS = 16  # of a source
MIN_DOCSTRING_CHARACTERS = 200  # shorter ones are labels rather than prose
SHARD_DOCUMENTS = 64
# Not the library's own prose, or none at all: tests, vendored wheels, tables of characters, the topics themselves.
SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data"}
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class UnitReader:
    """The records of one unit in order; to be closed."""

    _records: Generator[Record, None, None]

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def state(self) -> State:
        """Return the state at the next record, also after an error."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the file that is being read."""
        self._records.close()


@dataclass(frozen=True)
class Shard:
    """A part of a source that is read on its own: a file, a range of bytes, a row group."""

    name: str  # for people
    # Reads the records whose number is `part` modulo `parts`, from a state on; errors may come now or later.
    open: Callable[[int, int, State | None], UnitReader]


class Units:
    """A source as a sequence of units, the same on every machine: its shards, in parts if they are few.

    The price of a part is that all of its shard is read for it. A `whole` shard is one unit.
    """

    def __init__(self, shards: Sequence[Shard], *, whole: bool = False) -> None:
        self._shards = shards
        self._parts = 1 if whole else -(-MIN_UNITS // len(shards))

    def __len__(self) -> int:
        return len(self._shards) * self._parts

    def name(self, unit: int) -> str:
        """Return the unit's name for people."""
        return self._shards[unit // self._parts].name

    def open(self, unit: int, state: State | None) -> UnitReader:
        """Read from a state on, or from the unit's beginning; errors may come here or while it is read."""
        shard, part = divmod(unit, self._parts)
        return self._shards[shard].open(part, self._parts, state)


class CountedReader(UnitReader):
    """Some of these records: those whose number is `part` modulo `parts`; the state is the next record's number."""

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
    """Return the answer for each file, None for one that cannot be read; raises what stands against all of them."""

    def answer(file: File) -> Answer | Exception:
        try:
            return ask(file)
        except Exception as error:  # noqa: BLE001 - file systems raise anything; the reader of the file reports it
            return error

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = list(pool.map(answer, files))
    errors = [each for each in found if isinstance(each, Exception)]
    if len(errors) == len(files):
        raise errors[0]
    return [None if isinstance(each, Exception) else each for each in found]


def deal_units(units: int, device_number: int, seed: tuple[int, ...], epoch: int) -> NDArray[np.int64]:
    """All (units,) in the device's order: one order for all devices, each of which begins elsewhere and goes round.

    So devices read different units at the same time, and together they cover all of them evenly, without talking to
    each other and without knowing how many they are.
    """
    order = np.random.default_rng((*seed, epoch)).permutation(units)
    begin = int(device_number * GOLDEN_RATIO % 1.0 * units)
    return np.roll(order, -begin)


def shard_of(name: str, documents: Sequence[str]) -> Shard:
    """Return documents at hand as a shard."""
    return Shard(name, partial(CountedReader, lambda first: iter(documents[first:])))


def builtin_shards() -> list[Shard]:
    """The built-in corpus in shards of so many documents each."""
    documents = builtin_documents()
    starts = enumerate(range(0, len(documents), SHARD_DOCUMENTS))
    return [
        shard_of(f"part {number} of the built-in corpus", documents[start : start + SHARD_DOCUMENTS])
        for number, start in starts
    ]


@cache
def builtin_documents() -> tuple[str, ...]:
    """All documents of the built-in corpus, each once, in an order that depends on the Python version only."""
    library = Path(sysconfig.get_paths()["stdlib"])
    documents = [topics[name] for name in sorted(topics)]
    for path in sorted(library.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(library).parts):
            documents.extend(long_docstrings(path.read_bytes()))
    return tuple(dict.fromkeys(documents))


def long_docstrings(source: bytes) -> Iterator[str]:
    """The docstrings of a module's source that are long enough to be prose, in order; none if it does not parse."""
    if b'"""' not in source and b"'''" not in source:  # parsing is the cost here
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
    """The node and the classes and functions directly in it, depth first (no walk through expressions)."""
    yield node
    for statement in node.body:
        if isinstance(statement, Documented):
            yield from _definitions(statement)
