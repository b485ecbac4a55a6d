"""Plain text and JSON Lines, packed or not, as units: ranges of a plain file, every k-th document of a packed one.

Not read by `datasets`, which can neither pass over a bad record or an endless line nor begin in the middle of a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

from peer.config.data import Source
from peer.data.addresses import Address, find_files
from peer.data.file_reading import open_at, size_if_divisible
from peer.data.lines import Found, line_documents, paragraph_documents
from peer.data.units import Record, State, UnitReader, parts_of_each

Decode = Callable[[bytes], Record]
Divide = Callable[[BinaryIO, int, int | None, bool], Iterator[Found]]
MANY_FILES = 64  # so many need not be divided, nor asked for their sizes
ASKED_AT_ONCE = 8
MIN_RANGE_BYTES = 1 << 20  # shorter ranges are not worth their requests
MAX_RANGE_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Range:
    """A part of a file, in bytes of its unpacked content."""

    address: Address
    start: int = 0
    end: int | None = None  # None is the file's end


class FileUnits:
    """The files of one source."""

    def __init__(self, source: Source, *, whole: bool = False) -> None:
        files = find_files(source)
        self._ranges = [Range(file) for file in files] if len(files) >= MANY_FILES else cut_files(files)
        self._parts = parts_of_each(len(self._ranges), whole=whole)
        self._divide: Divide = paragraph_documents
        self._decode: Decode = decode_text
        if source.kind == "jsonl":
            self._decode = JsonDecoder(source)
        if source.kind == "jsonl" or source.documents == "line":
            self._divide = line_documents

    def __len__(self) -> int:
        return len(self._ranges) * self._parts

    def name(self, unit: int) -> str:
        return f"`{self._ranges[unit // self._parts].address.url}`"

    def open(self, unit: int, state: State | None) -> UnitReader:
        number, part = divmod(unit, self._parts)
        return FileReader(self._ranges[number], self._divide, self._decode, (part, self._parts), state)


class FileReader:
    """Some of the documents of a range: those whose number is `part` modulo `parts`."""

    def __init__(
        self, span: Range, divide: Divide, decode: Decode, dealt: tuple[int, int], state: State | None
    ) -> None:
        self._span, self._divide, self._decode = span, divide, decode
        self._part, self._parts = dealt
        # Before the range's first byte, so that a line which begins with it is seen to begin.
        self._offset = max(span.start - 1, 0) if state is None else int(state["offset"])
        self._number = 0 if state is None else int(state["number"])
        self._at_document = state is not None or span.start == 0
        self._records = self._read()

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def state(self) -> State:
        return {"offset": self._offset, "number": self._number}

    def close(self) -> None:
        self._records.close()

    def _read(self) -> Generator[Record, None, None]:
        with closing(open_at(self._span.address, self._offset)) as file:
            for content, after in self._divide(file, self._offset, self._span.end, self._at_document):
                self._offset, self._number = after, self._number + 1
                if (self._number - 1) % self._parts == self._part:
                    yield None if content is None else self._decode(content)


class JsonDecoder:
    """The text of a JSON object, if it is in one of the wanted languages."""

    def __init__(self, source: Source) -> None:
        self._text_field = source.text_field
        self._language_field, self._languages = source.filters.language_field, source.filters.languages

    def __call__(self, line: bytes) -> Record:
        try:
            fields = json.loads(line.removeprefix(BYTE_ORDER_MARK))
            text = fields[self._text_field]
            text.encode()  # half a surrogate pair is no text
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        if self._language_field is not None and fields.get(self._language_field) not in self._languages:
            return ""
        return str(text)


def decode_text(content: bytes) -> str:
    """A document of plain text; what is not UTF-8 becomes a replacement character."""
    return content.removeprefix(BYTE_ORDER_MARK).decode("utf-8", errors="replace").strip()


def cut_files(files: Sequence[Address]) -> list[Range]:
    """The files in order, those that can be read from any place on in ranges of about the same length."""
    sizes = _sizes(files)
    fair_bytes = sum(size or 0 for size in sizes) // MANY_FILES
    range_bytes = min(max(fair_bytes, MIN_RANGE_BYTES), MAX_RANGE_BYTES)
    return list(chain.from_iterable(_cut(file, size, range_bytes) for file, size in zip(files, sizes, strict=True)))


def _sizes(files: Sequence[Address]) -> list[int | None]:
    """The files' sizes, None for one that is read as a whole or cannot be read; raises what stands against all."""

    def size(file: Address) -> int | Exception | None:
        try:
            return size_if_divisible(file)
        except Exception as error:  # noqa: BLE001 - of any file system; whoever reads the file says what is wrong
            return error

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = list(pool.map(size, files))
    errors = [error for error in found if isinstance(error, Exception)]
    if len(errors) == len(files):
        raise errors[0]
    return [None if isinstance(size, Exception) else size for size in found]


def _cut(file: Address, size: int | None, range_bytes: int) -> Iterator[Range]:
    if size is None:
        yield Range(file)
        return
    for start in range(0, max(size, 1), range_bytes):
        yield Range(file, start, start + range_bytes)
