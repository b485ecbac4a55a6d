"""Shards of plain text and JSON Lines files, optionally compressed.

A plain file is divided into ranges; a part of a compressed file is every k-th document.
`datasets` is not used, because it can neither skip a bad record or an endless line nor begin in the
middle of a file. Memory is bounded: a document of more than 16 MiB is cut into pieces
(`peer.data.sources.pieces`), and a JSON line of more than 64 MiB is skipped. A truncated file is an
error.

The ranges of a file are disjoint and complete: a line belongs to the range in which it begins, a
paragraph to the range of the blank line before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import BinaryIO

from peer.config.data import Source
from peer.data.sources.fields import document_of
from peer.data.sources.pieces import cut_bytes, cut_text
from peer.data.sources.recognition import is_legible
from peer.data.sources.streams import open_at, size_if_divisible
from peer.data.sources.units import MANY_FILES, Record, Shard, State, UnitReader, ask_each
from peer.network.remote_files import FileLocation, find_files

MAX_DOCUMENT_BYTES = 16 << 20
MAX_JSON_BYTES = 64 << 20  # maximum size of a line, which must be parsed as a whole
# A document or piece (None if too long), and the offset after the document (None before its last
# piece).
Found = tuple[bytes | None, int | None]
Decode = Callable[[bytes], Record]
Divide = Callable[[BinaryIO, int, int | None, bool], Iterator[Found]]
MIN_RANGE_BYTES = 1 << 20  # shorter ranges would need too many requests
MAX_RANGE_BYTES = 16 << 20
LONGEST_BLANK = 200  # maximum length of a blank line, in bytes
ZERO_WIDTH = dict.fromkeys([*range(0x200B, 0x2010), 0x2060, 0xFEFF])  # invisible characters
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Range:
    """A part of a file, in bytes of its uncompressed content."""

    address: FileLocation
    start: int = 0
    end: int | None = None  # end of the part; None: the file is not divided
    encoding: str | None = None  # None: detected from the first bytes


def file_shards(source: Source) -> list[Shard]:
    """List the ranges of a source's files, or whole files if they are many or indivisible."""
    files = [Range(file, encoding=source.encoding) for file in find_files(source)]
    spans = files if len(files) >= MANY_FILES else cut_files(files)
    return [Shard(f"`{span.address.url}`", partial(FileReader, source, span)) for span in spans]


class FileReader(UnitReader):
    """A reader of those documents of a range whose index modulo `parts` is `part`."""

    def __init__(self, source: Source, span: Range, part: int, parts: int, state: State | None) -> None:
        self._span, self._part, self._parts = span, part, parts
        is_json = source.kind == "jsonl"
        in_lines = is_json or source.documents == "line"
        self._divide: Divide = partial(line_documents, in_pieces=not is_json) if in_lines else paragraph_documents
        self._decode: Decode = partial(decode_json, source) if is_json else decode_text
        # Documents above a limit in bytes are cut into pieces; a character has up to four bytes.
        self._wants_long = (source.filters.max_characters or MAX_DOCUMENT_BYTES) > MAX_DOCUMENT_BYTES // 4
        # Begins one byte early, to detect whether a line begins at the range's first byte.
        self._offset = max(span.start - 1, 0) if state is None else int(state["offset"])
        self._number = 0 if state is None else int(state["number"])
        self._pieces = 0 if state is None else int(state.get("pieces", 0))  # number of pieces already read
        self._records = self._read(self._number > 0 or span.start == 0)

    def state(self) -> State:
        place = {"offset": self._offset, "number": self._number}
        return {**place, "pieces": self._pieces} if self._pieces else place

    def _read(self, at_document: bool) -> Generator[Record, None, None]:
        piece, read_before = 0, self._pieces
        span = self._span
        with closing(
            open_at(span.address, self._offset, encoding=span.encoding, is_plain=span.end is not None)
        ) as file:
            for content, after in self._divide(file, self._offset, span.end, at_document):
                is_ours = self._number % self._parts == self._part
                records = self._records_of(content) if is_ours else [None]
                is_long = piece > 0 or after is None or len(records) > 1
                for left, record in zip(reversed(range(len(records))), records, strict=True):
                    piece += 1
                    is_new = piece > read_before
                    if after is not None and not left:
                        self._offset, self._number, self._pieces = after, self._number + 1, 0
                        piece = read_before = 0
                    elif is_new:
                        self._pieces = piece
                    if is_ours and is_new:
                        yield record if self._wants_long or not is_long else ""

    def _records_of(self, content: bytes | None) -> list[Record]:
        """Decode a document or a piece; cut text that decoding has made too long."""
        record = None if content is None else self._decode(content)
        return [None] if record is None else list(cut_text(record, MAX_DOCUMENT_BYTES))


def decode_json(source: Source, line: bytes) -> Record:
    """Return the text of a JSON object (see `document_of`), or None if it is damaged or has no text."""
    try:
        text = document_of(json.loads(line.removeprefix(BYTE_ORDER_MARK)), source)
        (text or "").encode()  # raises for an unpaired surrogate
    except (ValueError, RecursionError):
        return None
    return text


def decode_text(content: bytes) -> Record:
    """Decode UTF-8 text, replacing invalid bytes; return None if there are too many."""
    text = content.removeprefix(BYTE_ORDER_MARK).decode("utf-8", errors="replace").strip()
    return text if is_legible(text) else None


def cut_files(files: Sequence[Range]) -> list[Range]:
    """Return the files in order, dividing those readable from any offset into ranges."""
    sizes = ask_each(files, lambda file: size_if_divisible(file.address, file.encoding))
    fair_bytes = sum(size or 0 for size in sizes) // MANY_FILES
    range_bytes = min(max(fair_bytes, MIN_RANGE_BYTES), MAX_RANGE_BYTES)
    return list(chain.from_iterable(_cut(file, size, range_bytes) for file, size in zip(files, sizes, strict=True)))


def _cut(whole: Range, size: int | None, range_bytes: int) -> Iterator[Range]:
    if size is None:
        yield whole
        return
    for start in range(0, max(size, 1), range_bytes):
        yield replace(whole, start=start, end=start + range_bytes)


def line_documents(
    file: BinaryIO, offset: int, end: int | None, whole_line: bool, *, in_pieces: bool = True
) -> Iterator[Found]:
    """Yield the non-blank lines that begin before `end`.

    `file` is at `offset`; without `whole_line`, the remainder of the line there is skipped.
    """
    line, at = _Gathered(in_pieces=in_pieces), offset
    for start, chunk, at in _lines(file, offset):
        if end is not None and start >= end:
            return
        if whole_line or start > offset:
            yield from line.add(chunk)
            if chunk.endswith(b"\n"):
                yield from line.end(at)
    yield from line.end(at)


def paragraph_documents(file: BinaryIO, offset: int, end: int | None, whole_paragraph: bool) -> Iterator[Found]:
    """Yield the paragraphs that follow blank lines beginning before `end`.

    `file` is at `offset`; without `whole_paragraph`, the paragraph there is skipped.
    """
    paragraph, ours, at = _Gathered(), whole_paragraph, offset
    for start, chunk, at in _lines(file, offset):
        if not is_blank(chunk) or start + len(chunk) < at:  # the tail of a long line is not a blank line
            if ours:
                yield from paragraph.add(chunk)
        elif start > offset or whole_paragraph:  # otherwise it may be the tail of a non-blank line
            yield from paragraph.end(start)
            ours = end is None or start < end
            if not ours:
                return
    yield from paragraph.end(at)


def is_blank(line: bytes) -> bool:
    """Return whether a line contains only (Unicode) white space and zero-width characters."""
    content = line.strip()
    if not content:
        return True
    return (
        content[0] > 0x7F
        and len(content) < LONGEST_BLANK
        and not content.decode("utf-8", "replace").translate(ZERO_WIDTH).strip()
    )


class _Gathered:
    """A buffer for one document; a document that is too long is yielded in pieces while it is read."""

    def __init__(self, *, in_pieces: bool = True) -> None:
        self._in_pieces = in_pieces
        self._begin()

    def _begin(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0  # bytes not yielded yet
        self._is_cut = False

    def add(self, chunk: bytes) -> Iterator[Found]:
        """Add the next bytes, and yield the complete pieces."""
        self._bytes += len(chunk)
        self._chunks.append(chunk)
        if self._in_pieces and self._bytes > MAX_DOCUMENT_BYTES:
            *pieces, rest = cut_bytes(b"".join(self._chunks), MAX_DOCUMENT_BYTES)
            yield from ((piece, None) for piece in pieces)
            self._chunks, self._bytes, self._is_cut = [rest], len(rest), True
        elif self._bytes > MAX_JSON_BYTES:
            self._chunks.clear()

    def end(self, after: int) -> Iterator[Found]:
        """Yield the document or its last piece, or None if it is too long; reset the buffer."""
        content = b"".join(self._chunks)
        if self._bytes > MAX_JSON_BYTES:
            yield None, after
        elif self._is_cut or content.strip():
            yield content, after
        self._begin()


def _lines(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield each line in bounded chunks, with the offsets of the line's start and chunk's end."""
    start = offset
    while chunk := file.readline(MAX_DOCUMENT_BYTES):
        offset += len(chunk)
        yield start, chunk, offset
        if chunk.endswith(b"\n"):
            start = offset
