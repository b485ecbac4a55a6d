"""Sparse gradients on the wire."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hivemind.compression import CompressionInfo
from hivemind.proto import runtime_pb2
from hypothesis import given, settings, strategies as st

from peer.reduction.compression import decode, encode
from peer.reduction.sizes import CHUNK, CHUNK_BYTES, CHUNK_SENT, VALUE_BYTES
from peer.reduction.top_k import MOST_DECODED, TOP_K, SparseValues, sent_of

COUNTS = st.sampled_from([0, 1, 2, 63, 64, 65, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 130])
SCALES = st.sampled_from([1e-38, 1e-8, 1.0, 1e30])
SEEDS = st.integers(0, 2**32 - 1)
Change = Callable[[bytearray], object]


def gradient(count: int, scale: float = 1.0, seed: int = 1, share: float = 1.0) -> torch.Tensor:
    """Values of which this share are not zero, as in the embeddings of rare words."""
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(count, generator=generator)
    return values * (torch.rand(count, generator=generator) < share)


def written(values: torch.Tensor) -> runtime_pb2.Tensor:
    """The message of a sender."""
    return encode(values, TOP_K.compression_type)


@settings(max_examples=40)
@given(count=COUNTS, scale=SCALES, seed=SEEDS, share=st.sampled_from([0.0, 0.005, 1.0]))
def test_a_chunks_largest_values_come_and_nothing_grows(count: int, scale: float, seed: int, share: float) -> None:
    """Of each chunk no value left out is larger than one that came; two magnitudes are left, between those sent."""
    values = gradient(count, scale, seed, share)
    read = decode(written(values), TOP_K)
    assert read.shape == values.shape
    for own, came in zip(values.split(CHUNK), read.split(CHUNK), strict=True):
        sizes = own.abs().sort(descending=True).values[: sent_of(len(own))]
        assert len(came[came != 0].abs().unique()) <= 2
        assert torch.all(own[came != 0].abs() >= sizes[-1:])
        assert torch.all(came.abs() <= sizes[:1])
        assert torch.all(came * own >= 0)
        assert (own - came).double().norm() <= own.double().norm()


@settings(max_examples=40)
@given(count=COUNTS, scale=SCALES, seed=SEEDS, share=st.sampled_from([0.005, 1.0]))
def test_decoded_values_encode_to_themselves(count: int, scale: float, seed: int, share: float) -> None:
    """So a gradient is sparse before it is divided into parts; the same values give the same bytes."""
    values = gradient(count, scale, seed, share)
    read = decode(written(values), TOP_K)
    assert written(values) == written(values.clone())
    assert torch.equal(decode(written(read), TOP_K), read)
    parts = [decode(written(part), TOP_K) for part in read.split(CHUNK)]
    assert torch.equal(torch.cat(parts), read)


def test_two_bits_lose_little_of_what_is_sent() -> None:
    """Of normally distributed values less than a tenth of the norm of those that come."""
    values = gradient(50 * CHUNK)
    read = decode(written(values), TOP_K)
    came = read != 0
    assert int(came.sum()) == 50 * CHUNK_SENT
    assert float((values - read)[came].norm() / values[came].norm()) < 0.1


@pytest.mark.parametrize(("count", "sent"), [(0, 0), (1, 1), (64, 1), (65, 2), (CHUNK, 64), (CHUNK + 1, 65)])
def test_one_value_in_64_is_sent(count: int, sent: int) -> None:
    """Rounded up in the last chunk, so that no tensor is left out."""
    assert sent_of(count) == sent == len(SparseValues.largest_of(gradient(count)).places)


def test_bytes_for_each_value() -> None:
    """The bytes on the wire are those with which parts and rounds are planned."""
    values = gradient(10 * CHUNK)
    assert len(written(values).buffer) == 10 * CHUNK_BYTES == VALUE_BYTES["topk-2bit"] * len(values)
    assert TOP_K.estimate_compression_ratio(CompressionInfo.from_tensor(values)) == VALUE_BYTES["topk-2bit"] / 4


def test_a_tensor_of_any_shape_comes_back_in_its_shape() -> None:
    """The chunks are those of the flat tensor."""
    values = gradient(3 * 50 * 70)
    assert torch.equal(decode(written(values.view(3, 50, 70)), TOP_K).flatten(), decode(written(values), TOP_K))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused(bad: float) -> None:
    """Its magnitude is the chunk's largest, and the code cannot hide that."""
    values = gradient(2 * CHUNK)
    values[7] = bad
    with pytest.raises(ValueError, match="two finite numbers"):
        decode(written(values), TOP_K)


def magnitude(at: int, value: float) -> Change:
    """Put another magnitude in its place."""

    def change(content: bytearray) -> None:
        content[4 * at : 4 * at + 4] = np.float32(value).tobytes()

    return change


def index(at: int, value: int) -> Change:
    """Put another index (of an even number) in its place, behind the magnitudes of two chunks."""

    def change(content: bytearray) -> None:
        begin = 16 + 3 * (at // 2)
        content[begin] = value & 0xFF
        content[begin + 1] = content[begin + 1] & 0xF0 | value >> 8

    return change


HOSTILE: dict[str, tuple[Change, str]] = {
    "too short": (lambda content: content.pop(), "bytes are not"),
    "too long": (lambda content: content.append(0), "bytes are not"),
    "empty": (lambda content: content.clear(), "bytes are not"),
    "not a number": (magnitude(1, float("nan")), "two finite numbers"),
    "infinite": (magnitude(3, float("inf")), "two finite numbers"),
    "negative": (magnitude(0, -1.0), "two finite numbers"),
    "in the wrong order": (magnitude(0, 1e9), "two finite numbers"),
    "named twice": (lambda content: content.__setitem__(slice(16, 19), b"\x05\x50\x00"), "not ascending"),
    "descending": (index(2, 0), "not ascending"),
    "out of range": (index(66, 0xFFF), "out of its range"),
    "set behind the last": (lambda content: content.__setitem__(-1, content[-1] | 0xC0), "bits behind"),
}


@pytest.mark.parametrize(("change", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_bytes_that_no_sender_writes_are_refused(change: Change, reason: str) -> None:
    """Wrong lengths, magnitudes that are none, indices out of range or named twice, and bits without a meaning."""
    message = written(gradient(CHUNK + 130))  # 64 values of the first chunk, 3 of the second
    content = bytearray(message.buffer)
    change(content)
    message.buffer = bytes(content)
    with pytest.raises(ValueError, match=reason):
        decode(message, TOP_K)


@settings(max_examples=60)
@given(content=st.binary(max_size=200), count=st.sampled_from([1, 64, 130, CHUNK, CHUNK + 64]))
def test_any_bytes_are_refused_or_finite(content: bytes, count: int) -> None:
    """No bytes of a stranger end in another error, and none decode to more values than may come."""
    try:
        read = SparseValues.unpacked(content, count).dense()
    except ValueError:
        return
    assert read.isfinite().all()
    assert int((read != 0).sum()) <= sent_of(count)


@settings(max_examples=60)
@given(seed=SEEDS, place=st.integers(0, 127), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_finite(seed: int, place: int, byte: int) -> None:
    """The same of bytes that are nearly right."""
    content = bytearray(SparseValues.largest_of(gradient(CHUNK, seed=seed)).packed())
    content[place % len(content)] = byte
    try:
        read = SparseValues.unpacked(bytes(content), CHUNK).dense()
    except ValueError:
        return
    assert read.isfinite().all()
    assert int((read != 0).sum()) <= CHUNK_SENT


@pytest.mark.parametrize("size", [[MOST_DECODED + 1], [2**31 - 1] * 3, [MOST_DECODED, CHUNK]])
def test_more_values_than_a_part_has_are_refused(size: list[int]) -> None:
    """Before any memory is taken for them, even if their bytes are all there."""
    message = written(gradient(CHUNK))
    del message.size[:]
    message.size.extend(size)
    if size == [MOST_DECODED + 1]:
        message.buffer = bytes(CHUNK_BYTES * (MOST_DECODED // CHUNK) + 8 + 3 + 1)
    with pytest.raises(ValueError, match="values at most"):
        decode(message, TOP_K)
