"""Messages that are flat lists of texts and bytes, in MessagePack.

They are read value by value: a list within the list would take far more memory than its message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack


def write_scalars(values: Iterable[str | bytes]) -> bytes:
    """Return the message with these values."""
    message: bytes = msgpack.packb(list(values))
    return message


def read_scalars(message: bytes, most: int) -> list[str | bytes]:
    """Read a message with at most `most` values. Raises `ValueError` if it has more, or others."""
    unpacker: Any = msgpack.Unpacker(max_buffer_size=len(message), max_array_len=0, max_map_len=0, max_ext_len=0)
    unpacker.feed(message)
    try:
        count = unpacker.read_array_header()
        if count > most:
            raise ValueError(f"it has more than {most} values")
        values = [unpacker.unpack() for _ in range(count)]
    except (msgpack.UnpackException, ValueError) as error:
        raise ValueError(f"it is no list of texts and bytes ({error})") from error
    if unpacker.tell() < len(message) or not all(isinstance(value, str | bytes) for value in values):
        raise ValueError("it has other values than texts and bytes")
    return values
