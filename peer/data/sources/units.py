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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Protocol, TypeVar

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
MIN_UNITS = 16  # of a source; the price of a part is that all of its file is read for it
MIN_DOCSTRING_CHARACTERS = 200  # shorter ones are labels rather than prose
UNIT_DOCUMENTS = 64
# Not the library's own prose, or none at all: tests, vendored wheels, tables of characters, the topics themselves.
SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data"}
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class UnitReader(Protocol):
    """The records of one unit in order; to be closed."""

    def __iter__(self) -> Iterator[Record]: ...

    def state(self) -> State:
        """Return the state at the next record, also after an error."""
        ...

    def close(self) -> None: ...


class Units(Protocol):
    """A source as a sequence of units, the same on every machine."""

    def __len__(self) -> int: ...

    def name(self, unit: int) -> str:
        """Return the unit's name for people."""
        ...

    def open(self, unit: int, state: State | None) -> UnitReader:
        """Read from a state on, or from the unit's beginning; errors may come here or while it is read."""
        ...


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


def parts_of_each(shards: int, *, whole: bool = False) -> int:
    """Return the number of parts of each shard, so that there are enough units; 1 if shards are to stay `whole`."""
    return 1 if whole else -(-MIN_UNITS // shards)


def deal_units(units: int, device_number: int, seed: tuple[int, ...], epoch: int) -> NDArray[np.int64]:
    """All (units,) in the device's order: one order for all devices, each of which begins elsewhere and goes round.

    So devices read different units at the same time, and together they cover all of them evenly, without talking to
    each other and without knowing how many they are.
    """
    order = np.random.default_rng((*seed, epoch)).permutation(units)
    begin = int(device_number * GOLDEN_RATIO % 1.0 * units)
    return np.roll(order, -begin)


class BuiltinUnits:
    """The built-in corpus as a source: units of so many documents each."""

    def __init__(self) -> None:
        self._documents = builtin_documents()

    def __len__(self) -> int:
        return -(-len(self._documents) // UNIT_DOCUMENTS)

    def name(self, unit: int) -> str:
        return f"part {unit} of the built-in corpus"

    def open(self, unit: int, state: State | None) -> SequenceReader:
        return SequenceReader(self._documents[unit * UNIT_DOCUMENTS : (unit + 1) * UNIT_DOCUMENTS], state)


class SequenceReader:
    """Documents at hand, as the records of a unit."""

    def __init__(self, documents: Sequence[str], state: State | None) -> None:
        self._documents = documents
        self._number = 0 if state is None else int(state["number"])

    def __iter__(self) -> Iterator[str]:
        for document in self._documents[self._number :]:
            self._number += 1
            yield document

    def state(self) -> State:
        return {"number": self._number}

    def close(self) -> None:
        """Do nothing: no file is held open."""


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
