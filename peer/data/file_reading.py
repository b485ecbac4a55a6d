"""Files as streams of bytes, unpacked, from any place on: `open_at`.

Used by `peer.data.file_units`. A file that ends too early is an error, never just a short file.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from typing import Any, BinaryIO

import zstandard

from peer.data.addresses import Address

BUFFER_BYTES = 1 << 20
REQUEST_BYTES = 2 << 20  # asked of the network at a time
ZSTD_INPUT_BYTES = 1 << 12  # unpacked at a time: at worst it becomes 128 MB


def open_at(address: Address, offset: int) -> BinaryIO:
    """The file's unpacked content from a byte on, buffered."""
    if not address.compression:
        return io.BufferedReader(_open_plain(address, offset), BUFFER_BYTES)
    packed = _open_plain(address, 0)
    # Piece by piece, so that of a damaged file everything before the damage is read.
    read = gzip.GzipFile(fileobj=packed).read1 if address.compression == ".gz" else _Unpacked(packed).read
    stream = io.BufferedReader(_Closing(read, packed), BUFFER_BYTES)
    _pass_over(stream.read, offset)
    return stream


def size_if_divisible(address: Address) -> int | None:
    """The file's size in bytes if it can be read from any place on, else None."""
    if address.compression:
        return None
    with address.filesystem.open(address.path, block_size=REQUEST_BYTES) as file:
        return int(file.size) if _gives_ranges(address, file) else None


def _open_plain(address: Address, offset: int) -> io.RawIOBase:
    file = address.filesystem.open(address.path, block_size=REQUEST_BYTES)
    if _gives_ranges(address, file):
        file.seek(offset)
        return _Whole(file, offset)
    file.close()
    file = address.filesystem.open(address.path, block_size=0)  # one request for all of it, which must arrive whole
    _pass_over(file.read, offset)
    return _Closing(file.read, file)


def _gives_ranges(address: Address, file: Any) -> bool:
    """Whether the file can be read from any place on: web servers do not say so, they are tried."""
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
    """What `read` gives, until closed together with the file below."""

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
