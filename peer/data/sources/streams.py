"""Files as streams of text in UTF-8, from disks, storage and the web: unpacked, decoded, and whole or an error."""

from __future__ import annotations

import bz2
import codecs
import io
import logging
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from itertools import chain
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO

import zstandard

from auth.errors import ConfigError
from peer.data.sources.recognition import HEAD_BYTES, packing_of, text_form
from peer.network.remote_files import FileLocation, is_hidden

logger = logging.getLogger(__name__)
BUFFER_BYTES = 1 << 20
REQUEST_BYTES = 2 << 20  # asked of the network at a time
PACKED_BYTES = 1 << 12  # unpacked at a time: at worst they become 128 MB
XZ_MEMORY_BYTES = 256 << 20  # `xz -9` needs 65 MB
# Each member, frame or stream of an archive is unpacked by a new one.
UNPACKERS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "gzip": lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS),
        "bzip2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES),
        "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
    }
)
MOST_LEVELS = 2  # such as a packed file in a packed file; some archives hold themselves
BETWEEN_MEMBERS = b"\n\n"  # of a zip archive: each begins a document


def open_at(address: FileLocation, offset: int, *, encoding: str | None = None, is_plain: bool = False) -> BinaryIO:
    """Open the file's text in UTF-8 from a byte on, buffered.

    `is_plain`: the file is known to be neither packed nor in another encoding. Raises `ConfigError` for a file that
    holds no text, or whose encoding is not clear.
    """
    if is_plain:
        return io.BufferedReader(_open_bytes(address, offset), BUFFER_BYTES)
    name, levels = f"`{address.url}`", 0
    with ExitStack() as unused:  # closes what is not returned, such as a file that is refused
        head, stream = _beginning(unused.enter_context(_open_bytes(address, 0)))
        while (packing := packing_of(head)) is not None:
            if packing == "zip":
                stream.close()
                archive = None if levels else _open_zip(address)
                if archive is None:
                    raise ConfigError(
                        f"The file {name} is a zip archive that cannot be read where it is: unpack it first."
                    )
                stream = unused.enter_context(archive)
            elif levels == MOST_LEVELS:
                raise ConfigError(f"The file {name} is packed more than {MOST_LEVELS} times: unpack it first.")
            else:
                stream = _Chunks(_unpacked(stream, UNPACKERS[packing]), stream)
            levels += 1
            head, stream = _beginning(stream)
        form = text_form(head, name, encoding)
        if form.is_guess:
            _tell_of_guess(name, form.encoding)
        if form.is_plain and not levels and offset:
            return io.BufferedReader(_open_bytes(address, offset), BUFFER_BYTES)
        if not form.is_plain:
            stream = _Chunks(_in_utf8(stream, form.encoding, ends_with_cr=form.ends_with_cr), stream)
        buffered = io.BufferedReader(stream, BUFFER_BYTES)
        _pass_over(buffered.read, offset)
        unused.pop_all()
        return buffered


@cache
def _tell_of_guess(name: str, encoding: str) -> None:
    """Say it once, however often the file is opened."""
    logger.warning(
        "The file %s is not in UTF-8, and read as %s by the look of its letters: if that is wrong, name the `encoding` "
        "of its source.",
        name,
        encoding,
    )


def size_if_divisible(address: FileLocation, encoding: str | None = None) -> int | None:
    """The file's size in bytes if its text can be read from any line on, else None; raises `ConfigError` as above."""
    with address.filesystem.open(address.path, block_size=HEAD_BYTES) as file:
        if not _gives_ranges(address, file):
            return None
        file.seek(0)
        head = file.read(HEAD_BYTES)
        is_plain = packing_of(head) is None and text_form(head, f"`{address.url}`", encoding).is_plain
        return int(file.size) if is_plain else None


def _open_bytes(address: FileLocation, offset: int) -> io.RawIOBase:
    file = address.filesystem.open(address.path, block_size=REQUEST_BYTES)
    if _gives_ranges(address, file):
        file.seek(offset)
        return _Whole(file, offset)
    file.close()
    file = address.filesystem.open(address.path, block_size=0)  # one request for all of it, which must arrive whole
    _pass_over(file.read, offset)
    return _Reader(file.read, file)


def _open_zip(address: FileLocation) -> io.RawIOBase | None:
    """The members of a zip archive one after another; None if the server does not serve its parts.

    Raises `ConfigError` unless all of them are of one kind by their names.
    """
    with ExitStack() as unused:
        file = unused.enter_context(address.filesystem.open(address.path, block_size=REQUEST_BYTES))
        if not _gives_ranges(address, file):
            return None
        archive = zipfile.ZipFile(file)
        members = [name for name in archive.namelist() if not (name.endswith("/") or is_hidden(name))]
        kinds = {PurePosixPath(name).suffix.lower() for name in members}
        if len(kinds) > 1:
            raise ConfigError(
                f"The file `{address.url}` is a zip archive of files of several kinds ({', '.join(sorted(kinds))}): "
                "unpack it, and name those that hold the text."
            )
        unused.pop_all()
    return _Chunks(chain.from_iterable(_member(archive, name) for name in members), file)


def _member(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    with archive.open(name) as member:
        while data := member.read(BUFFER_BYTES):
            yield data
    yield BETWEEN_MEMBERS


def _beginning(stream: io.RawIOBase) -> tuple[bytes, io.RawIOBase]:
    """Return the stream's first bytes, and the stream with them; an error behind them comes when they are read."""
    head, error = b"", None
    try:
        while len(head) < HEAD_BYTES and (data := stream.read(HEAD_BYTES - len(head))):
            head += data
    except Exception as found:  # of any file system and format
        if not head:
            raise
        error = found
    taken = io.BytesIO(head)

    def read_on(size: int) -> bytes:
        data = taken.read(size)
        if not data and error is not None:
            raise error
        return data or stream.read(size) or b""

    return head, _Reader(read_on, stream)


def _unpacked(packed: io.RawIOBase, unpacker: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the content of an archive's members or frames piece by piece; the last of them must be complete.

    So everything before the damage of a damaged archive is read.
    """
    part, is_begun, data = unpacker(), False, b""
    while data := data or packed.read(PACKED_BYTES) or b"":
        if not is_begun and not (data := data.lstrip(b"\0")):  # padding
            continue
        is_begun = True
        yield part.decompress(data)
        data = b""
        if part.eof:
            part, is_begun, data = unpacker(), False, part.unused_data
    if is_begun:
        raise EOFError("its last part is incomplete")


def _in_utf8(raw: io.RawIOBase, encoding: str, *, ends_with_cr: bool) -> Iterator[bytes]:
    decoder, is_first = codecs.getincrementaldecoder(encoding)("replace"), True
    while data := raw.read(HEAD_BYTES):
        text = decoder.decode(data)
        text, is_first = text.removeprefix("\ufeff") if is_first else text, False
        yield (text.replace("\r", "\n") if ends_with_cr else text).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


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


class _Reader(io.RawIOBase):
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


class _Whole(_Reader):
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


class _Chunks(_Reader):
    """A file of these chunks, whatever their sizes."""

    def __init__(self, chunks: Iterator[bytes], below: Any) -> None:
        super().__init__(self._read_on, below)
        self._chunks, self._ready = chunks, memoryview(b"")

    def _read_on(self, size: int) -> bytes:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._ready = memoryview(chunk)
        data, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return data
