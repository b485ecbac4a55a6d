"""Plain text and JSON Lines, packed or not, as units: ranges of a plain file, every k-th document of a packed one.

Not read by `datasets`, which can neither pass over a bad record or an endless line nor begin in the middle of a file.
Memory is bounded: a document of more than 16 MiB comes in pieces, each of which is a document from there on
(`peer.data.sources.pieces`). Only a line of JSON of more than 64 MiB is passed over. A file that ends too early is an
error, never just a short file.

The ranges of a file share nothing and leave nothing out: a line belongs to the range in which it begins, a paragraph to
that in which the blank line before it begins.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

import zstandard

from peer.config.data import Source
from peer.data.sources.pieces import cut_bytes, cut_text
from peer.data.sources.units import Record, State, UnitReader, parts_of_each
from peer.network.remote_files import FileLocation, find_files

BUFFER_BYTES = 1 << 20
REQUEST_BYTES = 2 << 20  # asked of the network at a time
ZSTD_INPUT_BYTES = 1 << 12  # unpacked at a time: at worst it becomes 128 MB
MAX_DOCUMENT_BYTES = 16 << 20
MAX_JSON_BYTES = 64 << 20  # of a line, which has to be parsed as a whole
# A document or a piece of it, None if it is too long; the byte to go on from after the document, None before its end.
Found = tuple[bytes | None, int | None]
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

    address: FileLocation
    start: int = 0
    end: int | None = None  # None is the file's end


class FileUnits:
    """The files of one source, each read whole or in ranges."""

    def __init__(self, source: Source, *, whole: bool = False) -> None:
        files = find_files(source)
        self._ranges = [Range(file) for file in files] if len(files) >= MANY_FILES else cut_files(files)
        self._parts = parts_of_each(len(self._ranges), whole=whole)
        self._divide: Divide = paragraph_documents
        self._decode: Decode = decode_text
        if source.kind == "jsonl":
            self._decode = JsonDecoder(source)
        if source.kind == "jsonl" or source.documents == "line":
            self._divide = partial(line_documents, in_pieces=source.kind == "text")
        # A document that comes in pieces has more characters than this.
        self._wants_long = (source.filters.max_characters or MAX_DOCUMENT_BYTES) > MAX_DOCUMENT_BYTES // 4

    def __len__(self) -> int:
        return len(self._ranges) * self._parts

    def name(self, unit: int) -> str:
        return f"`{self._ranges[unit // self._parts].address.url}`"

    def open(self, unit: int, state: State | None) -> UnitReader:
        number, part = divmod(unit, self._parts)
        dealt = (part, self._parts)
        return FileReader(self._ranges[number], self._divide, self._decode, dealt, state, wants_long=self._wants_long)


class FileReader:
    """Some of the documents of a range: those whose number is `part` modulo `parts`."""

    def __init__(
        self,
        span: Range,
        divide: Divide,
        decode: Decode,
        dealt: tuple[int, int],
        state: State | None,
        *,
        wants_long: bool = True,
    ) -> None:
        self._span, self._divide, self._decode, self._wants_long = span, divide, decode, wants_long
        self._part, self._parts = dealt
        # Before the range's first byte, so that a line which begins with it is seen to begin.
        self._offset = max(span.start - 1, 0) if state is None else int(state["offset"])
        self._number = 0 if state is None else int(state["number"])
        self._pieces = 0 if state is None else int(state.get("pieces", 0))  # read so far of the document at the offset
        self._at_document = self._number > 0 or span.start == 0
        self._records = self._read()

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def state(self) -> State:
        place = {"offset": self._offset, "number": self._number}
        return {**place, "pieces": self._pieces} if self._pieces else place

    def close(self) -> None:
        self._records.close()

    def _read(self) -> Generator[Record, None, None]:
        piece, read_before = 0, self._pieces
        with closing(open_at(self._span.address, self._offset)) as file:
            for content, after in self._divide(file, self._offset, self._span.end, self._at_document):
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
        """Decode a document or a piece of one; text that is too long only now is cut now."""
        record = None if content is None else self._decode(content)
        return [None] if record is None else list(cut_text(record, MAX_DOCUMENT_BYTES))


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


def cut_files(files: Sequence[FileLocation]) -> list[Range]:
    """The files in order, those that can be read from any place on in ranges of about the same length."""
    sizes = _sizes(files)
    fair_bytes = sum(size or 0 for size in sizes) // MANY_FILES
    range_bytes = min(max(fair_bytes, MIN_RANGE_BYTES), MAX_RANGE_BYTES)
    return list(chain.from_iterable(_cut(file, size, range_bytes) for file, size in zip(files, sizes, strict=True)))


def _sizes(files: Sequence[FileLocation]) -> list[int | None]:
    """The files' sizes, None for one that is read as a whole or cannot be read; raises what stands against all."""

    def size(file: FileLocation) -> int | Exception | None:
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


def _cut(file: FileLocation, size: int | None, range_bytes: int) -> Iterator[Range]:
    if size is None:
        yield Range(file)
        return
    for start in range(0, max(size, 1), range_bytes):
        yield Range(file, start, start + range_bytes)


def line_documents(
    file: BinaryIO, offset: int, end: int | None, whole_line: bool, *, in_pieces: bool = True
) -> Iterator[Found]:
    """The lines that hold something and begin before `end`.

    The file stands at `offset`; the rest of the line there is passed over unless it is a `whole_line`.
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
    """The paragraphs after all blank lines that begin before `end`.

    The file stands at `offset`; what comes before the first blank line is passed over unless it is a `whole_paragraph`.
    """
    paragraph, ours, at = _Gathered(), whole_paragraph, offset
    for start, chunk, at in _lines(file, offset):
        if chunk.strip() or start + len(chunk) < at:  # the rest of a line is no blank line
            if ours:
                yield from paragraph.add(chunk)
        elif start > offset or whole_paragraph:  # else it may be the end of a line that is not blank
            yield from paragraph.end(start)
            ours = end is None or start < end
            if not ours:
                return
    yield from paragraph.end(at)


class _Gathered:
    """The bytes of one document; a document that is too long is yielded in pieces while it is read."""

    def __init__(self, *, in_pieces: bool = True) -> None:
        self._in_pieces = in_pieces
        self._begin()

    def _begin(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0  # that are not yielded yet
        self._is_cut = False

    def add(self, chunk: bytes) -> Iterator[Found]:
        """Take the next bytes, and yield the pieces that are complete."""
        self._bytes += len(chunk)
        self._chunks.append(chunk)
        if self._in_pieces and self._bytes > MAX_DOCUMENT_BYTES:
            *pieces, rest = cut_bytes(b"".join(self._chunks), MAX_DOCUMENT_BYTES)
            yield from ((piece, None) for piece in pieces)
            self._chunks, self._bytes, self._is_cut = [rest], len(rest), True
        elif self._bytes > MAX_JSON_BYTES:
            self._chunks.clear()

    def end(self, after: int) -> Iterator[Found]:
        """Yield the document or its last piece, if there is any, and begin another; None for one that is too long."""
        content = b"".join(self._chunks)
        if self._bytes > MAX_JSON_BYTES:
            yield None, after
        elif self._is_cut or content.strip():
            yield content, after
        self._begin()


def _lines(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield each line in bounded chunks, with the byte at which the line begins and the one at which the chunk ends."""
    start = offset
    while chunk := file.readline(MAX_DOCUMENT_BYTES):
        offset += len(chunk)
        yield start, chunk, offset
        if chunk.endswith(b"\n"):
            start = offset


def open_at(address: FileLocation, offset: int) -> BinaryIO:
    """The file's unpacked content from a byte on, buffered."""
    if not address.compression:
        return io.BufferedReader(_open_plain(address, offset), BUFFER_BYTES)
    packed = _open_plain(address, 0)
    # Piece by piece, so that of a damaged file everything before the damage is read.
    read = gzip.GzipFile(fileobj=packed).read1 if address.compression == ".gz" else _Unpacked(packed).read
    stream = io.BufferedReader(_Closing(read, packed), BUFFER_BYTES)
    _pass_over(stream.read, offset)
    return stream


def size_if_divisible(address: FileLocation) -> int | None:
    """The file's size in bytes if it can be read from any place on, else None."""
    if address.compression:
        return None
    with address.filesystem.open(address.path, block_size=REQUEST_BYTES) as file:
        return int(file.size) if _gives_ranges(address, file) else None


def _open_plain(address: FileLocation, offset: int) -> io.RawIOBase:
    file = address.filesystem.open(address.path, block_size=REQUEST_BYTES)
    if _gives_ranges(address, file):
        file.seek(offset)
        return _Whole(file, offset)
    file.close()
    file = address.filesystem.open(address.path, block_size=0)  # one request for all of it, which must arrive whole
    _pass_over(file.read, offset)
    return _Closing(file.read, file)


def _gives_ranges(address: FileLocation, file: Any) -> bool:
    """Return whether the file can be read from any offset; a web server is tried, because servers do not say so."""
    if not address.is_web:
        return True
    if not file.size:
        return False
    try:
        file.seek(file.size - 1)
        return len(file.read(1)) == 1
    except ValueError:  # fsspec's for a server that sent the whole file
        return False


def _pass_over(read: Callable[[int], bytes], count: int) -> None:
    while count > 0:
        passed = len(read(min(count, BUFFER_BYTES)))
        if not passed:
            raise EOFError("it has become shorter")
        count -= passed


class _Closing(io.RawIOBase):
    """A file of the bytes that `read` returns, closed together with the file below."""

    def __init__(self, read: Callable[[int], bytes], below: Any) -> None:
        self._read, self._below = read, below
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b"" if self._ended else self._read(len(buffer))
        self._ended = not data  # a web server's answer must not be asked again
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._below.close()
        super().close()


class _Whole(_Closing):
    """A file of a known size, all of which must come."""

    def __init__(self, file: Any, offset: int) -> None:
        super().__init__(self._read_on, file)
        self._left = int(file.size) - offset

    def _read_on(self, size: int) -> bytes:
        data = bytes(self._below.read(min(size, max(self._left, 0))))
        if not data and self._left > 0:
            raise EOFError(f"{self._left} bytes of it are missing")
        self._left -= len(data)
        return data


class _Unpacked:
    """Zstandard: any number of frames, the last of which must be complete."""

    def __init__(self, packed: io.RawIOBase) -> None:
        self._packed = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._frame_is_empty = True
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            data = data or self._packed.read(ZSTD_INPUT_BYTES) or b""
            if self._frame.eof:
                self._frame, self._frame_is_empty = zstandard.ZstdDecompressor().decompressobj(), True
            if not data:
                if self._frame_is_empty:
                    return b""
                raise EOFError("its last frame is incomplete")
            self._frame_is_empty = False
            self._ready = memoryview(self._frame.decompress(data))
        data, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return data
