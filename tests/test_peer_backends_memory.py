"""How memory that ends is recognized, and sizes that fit are found and remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.backends.memory import FoundSizes, is_out_of_memory, largest_fitting


@given(capacity=st.integers(0, 5000), limit=st.integers(1, 3000))
def test_size_fits_and_wastes_little(capacity: int, limit: int) -> None:
    """More than half of what would fit is found, and nothing is tried beyond the limit."""
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= capacity

    size = largest_fitting(fits, limit)
    possible = min(capacity, limit)
    assert size <= possible
    assert size > possible / 2 or possible == 0
    assert max(tried) <= limit


def test_what_means_that_memory_has_ended() -> None:
    """Accelerators, the CPU's allocator and Python say it each in their own way; other errors are not taken for it."""
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(cpu.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("not enough memory"))


def test_sizes_are_remembered(tmp_path: Path) -> None:
    """For each key its own, by the next process too."""
    path = tmp_path / "sizes.json"
    FoundSizes(path).put("a", 32)
    FoundSizes(path).put("b", 8)
    assert [FoundSizes(path).get(key) for key in "abc"] == [32, 8, None]


def test_a_size_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    """Training goes on where the disk is full; here a file stands where the folder would be."""
    (tmp_path / "file").write_text("")
    sizes = FoundSizes(tmp_path / "file" / "sizes.json")
    sizes.put("a", 32)
    assert sizes.get("a") is None


@pytest.mark.parametrize("content", ["", "[1]", "{broken", '{"a": "many"}', '{"a": -1}'])
def test_damaged_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    """What cannot be read is found anew and written over."""
    path = tmp_path / "sizes.json"
    path.write_text(content)
    sizes = FoundSizes(path)
    assert sizes.get("a") is None
    sizes.put("a", 4)
    assert sizes.get("a") == 4
