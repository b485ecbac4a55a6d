"""Packing without sentence order: a plain run of text, cut into full samples, of which nothing is lost."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given, strategies as st

from peer.data.batching.samples import ContiguousPacker
from peer.data.tokenization.encoding import EncodedChunk
from peer.data.tokenization.special_tokens import SpecialIds

SEPARATOR = -1
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
CHUNKS = st.lists(st.lists(st.integers(1, 30), max_size=8), max_size=5)


def chunk_of(lengths: list[int], first_token: int = 0) -> EncodedChunk:
    """Documents of these lengths, their tokens numbered through."""
    ends = np.array(list(accumulate(lengths)), np.int64)
    return EncodedChunk(np.arange(first_token, first_token + sum(lengths), dtype=np.int32), ends, ends)


def packer_of(capacity: int, seed: int = 0) -> ContiguousPacker:
    """A packer of text without a frame."""
    return ContiguousPacker(capacity, SPECIAL, np.random.default_rng(seed), framed=False, between=(SEPARATOR,))


def pack_all(chunks: list[list[int]], capacity: int) -> tuple[list[list[int]], ContiguousPacker]:
    """All samples of these chunks in the order of the text, and the packer."""
    packer = packer_of(capacity)
    rows: list[list[int]] = []
    tokens = 0
    for lengths in chunks:
        rows += sorted(packer.pack(chunk_of(lengths, tokens)).input_ids.tolist(), key=_first_token)
        tokens += sum(lengths)
    return rows, packer


def _first_token(row: list[int]) -> float:
    """Where a sample stands in the text; one that begins with a separator stands just before its first token."""
    return row[0] if row[0] != SEPARATOR else row[1] - 0.5 if len(row) > 1 else 0.0


@given(chunks=CHUNKS, capacity=st.integers(2, 40))
def test_samples_laid_end_to_end_are_the_text(chunks: list[list[int]], capacity: int) -> None:
    """Every document's tokens come out once and in order, a separator after each; what waits would fill no sample."""
    rows, packer = pack_all(chunks, capacity)
    expected: list[int] = []
    for length in (length for lengths in chunks for length in lengths):
        start = len(expected) - expected.count(SEPARATOR)
        expected += [*range(start, start + length), SEPARATOR]
    assert [token for row in rows for token in row] + packer.carried.tolist() == expected
    assert {len(row) for row in rows} <= {capacity}
    assert len(packer.carried) < capacity


def test_samples_of_one_text_do_not_follow_each_other() -> None:
    """A microbatch is mixed: the samples come in random order, by the generator that is passed in."""
    orders = []
    for seed in (0, 0, 1):
        orders.append(packer_of(10, seed).pack(chunk_of([1000])).input_ids[:, 0].tolist())
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
