"""Codes for gradients on the wire: as they are, in 16 bits, or in 8 bits by blocks.

hivemind's own 8-bit codes cannot be read back with today's NumPy, and its blockwise one needs bitsandbytes, a download
of a hundred megabytes for each volunteer. In the blockwise code here each block of 128 values has a scale of its own,
so that the rare large gradients cost only their neighbours precision.

The same bytes decode to the same bits on any machine: a value is one whole number times one float32.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    serialize_torch_tensor,
)
from hivemind.proto import runtime_pb2

from peer.config.training import Compression

BLOCK = 128  # values that share a scale
SCALE_BYTES = 4
LEVELS = 127  # on each side of zero


class BlockwiseCompression(CompressionBase):
    """A code of one byte a value: a block's largest magnitude becomes 127, others their share of it, rounded."""

    compression_type = runtime_pb2.CompressionType.BLOCKWISE_8BIT

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encode values of any shape; one that is not finite spoils its block, which the decoder notices."""
        del info, allow_inplace
        values = tensor.detach().to("cpu", torch.float32).flatten()
        blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1, keepdim=True).div_(LEVELS)  # (blocks, 1)
        shares = blocks / torch.where(scales == 0, torch.ones_like(scales), scales)
        codes = shares.round_().clamp_(-LEVELS, LEVELS).nan_to_num_(0).to(torch.int8).flatten()[: len(values)]
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=scales.numpy().tobytes() + codes.numpy().tobytes(),
            size=tensor.shape,
            dtype="float32",
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Decode the values. Raises `ValueError` if the bytes are not as many as the shape needs."""
        count = math.prod(serialized_tensor.size)
        blocks = -(-count // BLOCK)
        if len(serialized_tensor.buffer) != blocks * SCALE_BYTES + count:
            raise ValueError(f"{len(serialized_tensor.buffer)} bytes are not {count} values in 8 bits by blocks")
        scales = np.frombuffer(serialized_tensor.buffer, np.float32, blocks)
        codes = np.zeros(blocks * BLOCK, np.float32)
        codes[:count] = np.frombuffer(serialized_tensor.buffer, np.int8, count, blocks * SCALE_BYTES)
        with np.errstate(invalid="ignore", over="ignore"):  # of an infinite scale: who averages looks for such values
            values = codes.reshape(blocks, BLOCK) * scales[:, None]
        return torch.from_numpy(values.reshape(-1)[:count]).reshape(tuple(serialized_tensor.size))

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return the bytes on the wire for each byte of the tensor."""
        return (1 + SCALE_BYTES / BLOCK) / info.descriptor.dtype.itemsize


BLOCKWISE = BlockwiseCompression()
FLOAT16_LEAST = 2.0**-24  # between two values that are nearly zero
MAX_DIMENSIONS = 16
MOST_STRIDE = 2**63  # torch counts a tensor's strides in 64 bits, even where it has no values
_READERS: dict[int, CompressionBase] = {
    code.compression_type: code for code in (NoCompression(), Float16Compression(), BLOCKWISE)
}
_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "int8": 1}
VALUE_BYTES: dict[Compression, float] = {"none": 4, "float16": 2, "8bit-blockwise": 1 + SCALE_BYTES / BLOCK}


def compression_of(name: Compression) -> CompressionBase:
    """Return the code that a run file's `averaging.compression` names."""
    known: dict[Compression, CompressionBase] = {
        "none": NoCompression(),
        "float16": Float16Compression(),
        "8bit-blockwise": BLOCKWISE,
    }
    return known[name]


def encode(tensor: torch.Tensor, compression_type: int) -> runtime_pb2.Tensor:
    """Encode a tensor on the CPU for the wire, in the given code (hivemind's enumeration)."""
    if compression_type == BLOCKWISE.compression_type:
        return BLOCKWISE.compress(tensor, CompressionInfo.from_tensor(tensor))
    return serialize_torch_tensor(tensor, compression_type)


def most_rounding(values: torch.Tensor, compression_type: int) -> float:
    """Return the L2 norm of the largest rounding error in these values, which were decoded from such a code."""
    sizes = values.flatten().double().abs()
    if compression_type == BLOCKWISE.compression_type:
        blocks = torch.nn.functional.pad(sizes, (0, -len(sizes) % BLOCK)).view(-1, BLOCK)
        half_steps = (blocks.amax(dim=1) / LEVELS / 2).repeat_interleave(BLOCK)[: len(sizes)]
    elif compression_type == Float16Compression.compression_type:
        half_steps = (sizes * torch.finfo(torch.float16).eps / 2).clamp_min(FLOAT16_LEAST / 2)
    else:
        return 0.0
    return float(half_steps.norm())


def decode(message: runtime_pb2.Tensor) -> torch.Tensor:
    """Decode the tensor in another peer's message. Raises `ValueError` if it is not exactly what it claims to be.

    Only the codes and dtypes that peers use are taken: hivemind would take any of NumPy's, some of which are a thousand
    times larger in memory than on the wire, and would let the sender tie the tensor to an autograd graph.
    """
    if message.compression not in _READERS or message.dtype not in _DTYPE_BYTES or len(message.size) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor in code {message.compression} of dtype {message.dtype:.40} is not taken")
    width = 2 if message.compression == Float16Compression.compression_type else _DTYPE_BYTES[message.dtype]
    count = math.prod(message.size)
    if message.compression != BLOCKWISE.compression_type and len(message.buffer) != count * width:
        raise ValueError(f"{len(message.buffer)} bytes are not {count} values of {width} bytes")
    if not count:
        if math.prod(size or 1 for size in message.size) >= MOST_STRIDE:
            raise ValueError(f"no tensor has the shape {tuple(message.size)}")
        return torch.zeros(tuple(message.size), dtype=getattr(torch, message.dtype))
    plain = runtime_pb2.Tensor(
        compression=message.compression, buffer=message.buffer, size=message.size, dtype=message.dtype
    )
    return _READERS[message.compression].extract(plain).detach()
