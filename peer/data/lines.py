"""Documents in the lines of a file: each line one, or lines up to a blank one; bounded in size.

A file may be read in ranges of bytes that share nothing and leave nothing out: a line belongs to the range in which it
begins, a paragraph to that in which the blank line before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

MAX_DOCUMENT_BYTES = 16 << 20
Found = tuple[bytes | None, int]  # a document, None if it is too long; and the byte from which to go on after it


def line_documents(file: BinaryIO, offset: int, end: int | None, whole_line: bool) -> Iterator[Found]:
    """The lines that hold something and begin before `end`.

    The file stands at `offset`; the rest of the line there is passed over unless it is a `whole_line`.
    """
    for start, line, after in _lines(file, offset):
        if end is not None and start >= end:
            return
        if (line is None or line.strip()) and (whole_line or start > offset):
            yield line, after


def paragraph_documents(file: BinaryIO, offset: int, end: int | None, whole_paragraph: bool) -> Iterator[Found]:
    """The paragraphs after all blank lines that begin before `end`.

    The file stands at `offset`; what comes before the first blank line is passed over unless it is a `whole_paragraph`.
    """
    paragraph, ours, at = _Paragraph(), whole_paragraph, offset
    for start, line, after in _lines(file, offset):
        at = after
        if line is None or line.strip():
            paragraph.add(line)
        elif start > offset or whole_paragraph:  # else it may be the end of a line that is not blank
            if ours and paragraph:
                yield paragraph.content(), start
            paragraph, ours = _Paragraph(), end is None or start < end
            if not ours:
                return
    if ours and paragraph:
        yield paragraph.content(), at


class _Paragraph:
    """Lines that are gathered, as long as they are not too many."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = 0  # of all lines, too long ones included

    def __bool__(self) -> bool:
        return self._bytes > 0

    def add(self, line: bytes | None) -> None:
        """A line; None for one that is too long."""
        self._bytes += MAX_DOCUMENT_BYTES + 1 if line is None else len(line)
        if line is not None and self._bytes <= MAX_DOCUMENT_BYTES:
            self._lines.append(line)

    def content(self) -> bytes | None:
        return b"".join(self._lines) if self._bytes <= MAX_DOCUMENT_BYTES else None


def _lines(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes | None, int]]:
    """Each line with the bytes at which it begins and ends; None for one that is too long."""
    while line := file.readline(MAX_DOCUMENT_BYTES):
        start, offset = offset, offset + len(line)
        whole = line.endswith(b"\n") or len(line) < MAX_DOCUMENT_BYTES
        while not whole and (more := file.readline(MAX_DOCUMENT_BYTES)):
            offset, whole = offset + len(more), more.endswith(b"\n")
            line = b""
        yield start, line or None, offset
