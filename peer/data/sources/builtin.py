"""Prose that needs no download: Python's own documentation, as installed on every machine that runs manyhands.

The language reference's topics (`pydoc_data.topics`) and the standard library's long docstrings, about half a million
tokens. The library is parsed, never imported: importing runs code, opens files and differs between platforms.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

from peer.data.sources.units import State

MIN_DOCSTRING_CHARACTERS = 200  # shorter ones are labels rather than prose
UNIT_DOCUMENTS = 64
# Not the library's own prose, or none at all: tests, vendored wheels, tables of characters, the topics themselves.
SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data"}
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class BuiltinUnits:
    """The corpus as a source: units of so many documents each."""

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
    """All documents, each once, in an order that depends on the Python version only."""
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
