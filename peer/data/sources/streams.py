"""Local and remote files as streams of decompressed UTF-8 text; truncation is an error."""

from __future__ import annotations

import bz2
import codecs
import io
import logging
import lzma
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO

import zstandard

from auth.errors import ConfigError
from peer.data.sources.recognition import HEAD_BYTES, packing_of, text_form
from peer.network.remote_files import FileLocation, is_hidden

logger = logging.getLogger(__name__)
BUFFER_BYTES = 1 << 20
REQUEST_BYTES = 2 << 20  # bytes per network request
PACKED_BYTES = 1 << 12  # bytes passed to a decompressor at a time, which expand to at most 128 MB
XZ_MEMORY_BYTES = 256 << 20  # memory limit; `xz -9` needs 65 MB
# Each member, frame or stream of an archive needs a new decompressor.
UNPACKERS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "gzip": lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS),
        "bzip2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES),
        "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    }
)
MOST_LEVELS = 2  # maximum depth of nested compression; some archives contain themselves
BETWEEN_MEMBERS = b"\n\n"  # separates the members of a zip archive into documents
Chunks = Generator[bytes, None, None]


def open_at(address: FileLocation, offset: int, *, encoding: str | None = None, is_plain: bool = False) -> BinaryIO:
    """Open the file's text as buffered UTF-8, starting at a byte offset.

    `is_plain` states that the file is uncompressed UTF-8. Raises `ConfigError` for a file that is
    not text or whose encoding is ambiguous.
    """
    source = chunks = _bytes_from(address, offset if is_plain else 0)
    if is_plain:
        return io.BufferedReader(_Stream(chunks, source), BUFFER_BYTES)
    name, levels = f"`{address.url}`", 0
    try:
        head, chunks = _beginning(chunks)
        while (packing := packing_of(head)) is not None:
            if packing == "zip" and not levels:
                source.close()
                source = chunks = _members(address)
            elif packing == "zip":
                raise _refused_zip(address)
            elif levels == MOST_LEVELS:
                raise ConfigError(f"The file {name} is compressed more than {MOST_LEVELS} times: unpack it first.")
            else:
                chunks = _unpacked(chunks, UNPACKERS[packing])
            levels += 1
            head, chunks = _beginning(chunks)
        form = text_form(head, name, encoding)
        if form.is_guess:
            _tell_of_guess(name, form.encoding)
        if form.is_plain and not levels and offset:
            source.close()
            return open_at(address, offset, is_plain=True)
        if not form.is_plain:
            chunks = _in_utf8(chunks, form.encoding, ends_with_cr=form.ends_with_cr)
        file = io.BufferedReader(_Stream(chunks, source), BUFFER_BYTES)
        _pass_over(file.read, offset)
    except BaseException:
        source.close()
        raise
    return file


@cache
def _tell_of_guess(name: str, encoding: str) -> None:
    """Log a warning about a guessed encoding, once per file."""
    logger.warning(
        "The file %s is not in UTF-8, and read as %s by the look of its letters: if that is wrong, name the `encoding` "
        "of its source.",
        name,
        encoding,
    )


def size_if_divisible(address: FileLocation, encoding: str | None = None) -> int | None:
    """Return a file's size if it is readable from any line, else None; raises like `open_at`."""
    with address.filesystem.open(address.path, block_size=HEAD_BYTES) as file:
        if not _gives_ranges(address, file):
            return None
        file.seek(0)
        head = file.read(HEAD_BYTES)
        is_plain = packing_of(head) is None and text_form(head, f"`{address.url}`", encoding).is_plain
        return int(file.size) if is_plain else None


def _bytes_from(address: FileLocation, offset: int) -> Chunks:
    """Yield the file's bytes, starting at an offset. Raises `EOFError` if the file is truncated."""
    with address.filesystem.open(address.path, block_size=REQUEST_BYTES) as file:
        if _gives_ranges(address, file):
            file.seek(offset)
            left = int(file.size) - offset
            while left > 0:
                data = bytes(file.read(min(left, HEAD_BYTES)))
                if not data:
                    raise EOFError(f"{left} bytes are missing")
                left -= len(data)
                yield data
            return
    with address.filesystem.open(address.path, block_size=0) as file:  # reads the file with one request
        _pass_over(file.read, offset)
        while data := file.read(HEAD_BYTES):
            yield data


def _members(address: FileLocation) -> Chunks:
    """Yield the content of a zip archive's members one after another.

    Raises `ConfigError` if the server does not support ranges, or if the members' names have
    different suffixes.
    """
    with address.filesystem.open(address.path, block_size=REQUEST_BYTES) as file:
        if not _gives_ranges(address, file):
            raise _refused_zip(address)
        archive = zipfile.ZipFile(file)
        members = [name for name in archive.namelist() if not (name.endswith("/") or is_hidden(name))]
        kinds = {PurePosixPath(name).suffix.lower() for name in members}
        if len(kinds) > 1:
            raise ConfigError(
                f"The file `{address.url}` is a zip archive of files of several kinds ({', '.join(sorted(kinds))}): "
                "unpack it, and name those that hold the text."
            )
        for name in members:
            with archive.open(name) as member:
                while data := member.read(BUFFER_BYTES):
                    yield data
            yield BETWEEN_MEMBERS


def _refused_zip(address: FileLocation) -> ConfigError:
    return ConfigError(f"The file `{address.url}` is a zip archive that cannot be read where it is: unpack it first.")


def _beginning(chunks: Chunks) -> tuple[bytes, Chunks]:
    """Return the first bytes, and an iterator over all chunks, which raises any later error."""
    taken, error = b"", None
    try:
        while len(taken) < HEAD_BYTES and (chunk := next(chunks, None)) is not None:
            taken += chunk
    except Exception as found:  # file systems and formats raise errors of arbitrary types
        if not taken:
            raise
        error = found

    def again() -> Chunks:
        yield taken
        if error is not None:
            raise error
        yield from chunks

    return taken[:HEAD_BYTES], again()


def _unpacked(packed: Chunks, unpacker: Callable[[], Any]) -> Chunks:
    """Yield the decompressed members or frames. Raises `EOFError` if the last one is incomplete.

    A damaged archive yields all data before the damage.
    """
    part, is_begun = unpacker(), False
    for data in _sliced(packed, PACKED_BYTES):
        while True:
            if not is_begun:
                data = data.lstrip(b"\0")  # zeros between members are padding
            if not data:
                break
            is_begun = True
            yield part.decompress(data)
            if not part.eof:
                break
            part, is_begun, data = unpacker(), False, part.unused_data
    if is_begun:
        raise EOFError("its last part is incomplete")


def _in_utf8(chunks: Chunks, encoding: str, *, ends_with_cr: bool) -> Chunks:
    decoder, is_first = codecs.getincrementaldecoder(encoding)("replace"), True
    for data in _sliced(chunks, HEAD_BYTES):
        text = decoder.decode(data)
        text, is_first = text.removeprefix("\ufeff") if is_first else text, False
        yield (text.replace("\r", "\n") if ends_with_cr else text).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _sliced(chunks: Chunks, size: int) -> Iterator[bytes]:
    """Yield the chunks, cut to at most `size` bytes."""
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _gives_ranges(address: FileLocation, file: Any) -> bool:
    """Return whether the file can be read from any offset; a web server is tested with a request."""
    if not address.is_web:
        return True
    if not file.size:
        return False
    try:
        file.seek(file.size - 1)
        return len(file.read(1)) == 1
    except ValueError:  # raised by fsspec if the server sent the whole file
        return False


def _pass_over(read: Callable[[int], bytes], count: int) -> None:
    while count > 0:
        passed = len(read(min(count, BUFFER_BYTES)))
        if not passed:
            raise EOFError("it has become shorter")
        count -= passed


class _Stream(io.RawIOBase):
    """A file object over chunks; closing it closes their source."""

    def __init__(self, chunks: Chunks, source: Chunks) -> None:
        self._chunks, self._source, self._ready = chunks, source, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()
