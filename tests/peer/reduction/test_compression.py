"""Gradients on the wire."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hivemind.compression import CompressionInfo

from peer.config.training import Compression
from peer.reduction.compression import BLOCKWISE, ROOTS, compression_of, decode, encode, half_steps
from peer.reduction.sizes import BLOCK


def there_and_back(values: torch.Tensor, name: Compression = "8bit-blockwise") -> torch.Tensor:
    """What a peer reads of what another has written."""
    return decode(compression_of(name).compress(values, CompressionInfo.from_tensor(values)))


def relative_error(values: torch.Tensor, name: Compression = "8bit-blockwise") -> float:
    """The norm of what was lost on the wire, relative to the values' norm."""
    return float((there_and_back(values, name) - values).norm() / values.norm())


@pytest.mark.parametrize("shape", [(1,), (BLOCK - 1,), (BLOCK,), (3, BLOCK + 1), (0,)])
def test_every_shape_comes_back_with_small_errors(shape: tuple[int, ...]) -> None:
    """Values come back in their shape, each at most half a level of its block away."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    read = there_and_back(values)
    assert read.shape == values.shape
    assert torch.all((read - values).abs() <= values.abs().max() / 127 / 2 * 1.001) if values.numel() else True


def test_eight_bits_lose_less_than_a_hundredth_of_a_gradient() -> None:
    """Normally distributed values lose below one percent, those of rows of very different sizes hardly more."""
    generator = torch.Generator().manual_seed(2)
    even = torch.randn(200, BLOCK, generator=generator)
    uneven = even * torch.exp(2 * torch.randn(200, 1, generator=generator))
    assert relative_error(even) < 0.01
    assert relative_error(uneven) < 0.01


def test_tiny_gradients_are_no_smaller_in_eight_bits_than_in_sixteen() -> None:
    """Where 16 bits have run out of exponents, a block's own scale still tells the values apart."""
    tiny = 1e-8 * torch.randn(BLOCK, generator=torch.Generator().manual_seed(3))
    assert relative_error(tiny) < 0.01 < relative_error(tiny, "float16")


@pytest.mark.parametrize("code", [0, 2, BLOCKWISE.compression_type])  # 2: 16 bits
@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1.0, 1000.0])
def test_writing_changes_no_more_than_is_said_of_what_was_read(code: int, scale: float) -> None:
    """Also where values are so small that 16 bits have few steps for them; and not much less."""
    values = scale * torch.randn(3 * BLOCK + 5, generator=torch.Generator().manual_seed(4))
    read = decode(encode(values, code))
    changed, most = (read - values).double().abs(), half_steps(read, code)
    assert torch.all(changed <= most * 1.001)
    assert most.norm() <= 3 * changed.norm()


def test_what_was_decoded_is_coded_without_loss() -> None:
    """A reducer that takes its own average from the wire has the bits that everybody else decodes, zeros included."""
    values = torch.randn(5, BLOCK, generator=torch.Generator().manual_seed(4))
    values[2] = 0.0
    wire = encode(values, BLOCKWISE.compression_type)
    assert torch.equal(decode(wire), there_and_back(values))
    assert torch.equal(decode(wire)[2], torch.zeros(BLOCK))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_stays_noticeable(bad: float) -> None:
    """Such a value cannot be hidden by the code, so the round fails as it must; other blocks are not touched."""
    values = torch.ones(2 * BLOCK)
    values[3] = bad
    read = there_and_back(values)
    assert not torch.isfinite(read[:BLOCK]).any()
    assert torch.equal(read[BLOCK:], torch.ones(BLOCK))


@pytest.mark.parametrize("scale", [3e38, float("inf"), float("nan")])
def test_a_scale_too_large_for_its_values_stays_noticeable(scale: float) -> None:
    """What a peer made up overflows to what is not finite, quietly: who averages looks for that."""
    wire = encode(torch.ones(3), BLOCKWISE.compression_type)
    wire.buffer = np.float32(scale).tobytes() + wire.buffer[4:]
    assert not decode(wire).isfinite().any()


@pytest.mark.parametrize(("name", "bytes_each"), [("none", 4.0), ("float16", 2.0), ("8bit-blockwise", 1.03125)])
def test_bytes_for_each_value(name: Compression, bytes_each: float) -> None:
    """What a value costs on the wire is what the partition of the gradients reckons with."""
    values = torch.zeros(1000 * BLOCK)
    info = CompressionInfo.from_tensor(values)
    compression = compression_of(name)
    assert len(compression.compress(values, info).buffer) == bytes_each * len(values)
    assert compression.estimate_compression_ratio(info) == bytes_each / 4


@pytest.mark.parametrize("change", [b"", b"too many bytes"])
def test_bytes_that_do_not_fit_the_shape_are_refused(change: bytes) -> None:
    """A message whose bytes are fewer or more than its shape needs is an error, not a guess."""
    wire = encode(torch.ones(300), BLOCKWISE.compression_type)
    wire.buffer = wire.buffer[:-1] + change
    with pytest.raises(ValueError, match="are not 300 values"):
        decode(wire)


@pytest.mark.parametrize("code", ["none", "float16", "8bit-blockwise"])
@pytest.mark.parametrize("dtype", ["U9999999", "object", "complex64", "V8", "", "bool"])
def test_a_dtype_that_unfolds_in_memory_is_refused(code: Compression, dtype: str) -> None:
    """NumPy would make four million letters of each number, or an object."""
    message = encode(torch.ones(3), compression_of(code).compression_type)
    message.dtype = dtype
    with pytest.raises(ValueError, match="not taken"):
        decode(message)


@pytest.mark.parametrize("size", [[2], [4], [2**32 - 1] * 4, [], [0]])
def test_a_size_that_lies_is_refused(size: list[int]) -> None:
    """Before any memory is taken for it."""
    message = encode(torch.ones(3), compression_of("none").compression_type)
    del message.size[:]
    message.size.extend(size)
    with pytest.raises(ValueError, match="bytes are not"):
        decode(message)


def test_a_shape_without_values_that_nothing_can_hold_is_refused() -> None:
    """torch would fail while it counts the strides."""
    message = encode(torch.ones(0), compression_of("none").compression_type)
    del message.size[:]
    message.size.extend([0, 3, 2**31 - 1, 2**31 - 1])
    with pytest.raises(ValueError, match="no tensor has the shape"):
        decode(message)


def test_no_sender_ties_a_tensor_to_a_graph() -> None:
    """The flag would make every sum with it fail later, for all senders."""
    message = encode(torch.ones(3), compression_of("none").compression_type)
    message.requires_grad = True
    assert not decode(message).requires_grad


def moments_there_and_back(values: torch.Tensor) -> torch.Tensor:
    """A joiner's moments, which a donor has sent as roots."""
    return decode(ROOTS.compress(values, CompressionInfo.from_tensor(values)), ROOTS)


@pytest.mark.parametrize("shape", [(BLOCK,), (3, BLOCK + 1), (0,)])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e6])
def test_moments_lose_less_than_the_tolerance_of_a_sketch(shape: tuple[int, ...], scale: float) -> None:
    """First moments and second ones, however small; in two bytes a value and four a block."""
    first = scale * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for moment in (first, first * first.abs(), first.abs()):
        read = moments_there_and_back(moment)
        assert read.shape == moment.shape
        assert (read - moment).norm() <= 5e-5 * moment.norm()
        assert torch.equal(read.sign(), moment.sign())
    blocks = -(-first.numel() // BLOCK)
    assert len(ROOTS.compress(first, CompressionInfo.from_tensor(first)).buffer) == 2 * first.numel() + 4 * blocks


def test_a_small_second_moment_beside_a_large_one_stays_above_zero() -> None:
    """LAMB divides by its root; what is zero stays zero."""
    values = torch.zeros(BLOCK)
    values[:3] = torch.tensor([1.0, 1e-6, 1e-12])
    read = moments_there_and_back(values)
    assert (read[1] - 1e-6).abs() < 0.05 * 1e-6
    assert 0 < read[2] < 1e-8
    assert not read[3:].any()


def test_moments_code_is_not_taken_for_gradients() -> None:
    """A round has three codes; a state that does not fit its shape is refused as well."""
    wire = ROOTS.compress(torch.ones(300), CompressionInfo.from_tensor(torch.ones(300)))
    with pytest.raises(ValueError, match="not taken"):
        decode(wire)
    wire.buffer = wire.buffer[:-1]
    with pytest.raises(ValueError, match="are not 300 values in 16 bits"):
        decode(wire, ROOTS)
