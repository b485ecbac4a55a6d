"""Flat lists: what they hold, and that nothing else is read, however small its message is."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from peer.node.scalars import read_scalars, write_scalars


def test_texts_and_bytes_are_read_as_they_were_written() -> None:
    """In their order; as many as are allowed."""
    values = ["ada", b"signature", "", b""]
    assert read_scalars(write_scalars(values), len(values)) == values
    assert read_scalars(write_scalars([]), 0) == []
    with pytest.raises(ValueError, match="more than 3 values"):
        read_scalars(write_scalars(values), 3)


@pytest.mark.parametrize("value", [[], {}, ["a"], {"a": "b"}, 1, None, msgpack.ExtType(1, b"a")])
def test_other_values_are_refused(value: Any) -> None:
    """A list of a million empty lists would take sixty times its message's size."""
    with pytest.raises(ValueError, match="texts and bytes"):
        read_scalars(msgpack.packb([value]), 10)


@pytest.mark.parametrize(
    "message", [b"", b"\xc0", b"\x92\xa1a", b"\x91\xa2a", b"\x91\xa1\xff", b"\xa1a", b"\xc1", b"\x90a"]
)
def test_what_is_no_list_is_refused(message: bytes) -> None:
    """Also one that ends too early or too late, or whose text is none."""
    with pytest.raises(ValueError, match="texts and bytes"):
        read_scalars(message, 10)
