"""Codes for the wire: gradients as they are, in 16 bits, or in 8 bits by blocks; moments as roots in 16 bits by blocks.

hivemind's own 8-bit codes cannot be read back with today's NumPy, and its blockwise one needs bitsandbytes, a download
of a hundred megabytes for each volunteer. In the blockwise code here each block of 128 values has a scale of its own,
so that the rare large gradients cost only their neighbours precision.

The same bytes decode to the same bits on any machine: a value is one whole number times one float32.
"""

from __future__ import annotations

import math
from typing import Any

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
from peer.reduction.sizes import BLOCK, SCALE_BYTES


class BlockwiseCompression(CompressionBase):
    """A code of one byte a value: a block's largest magnitude becomes 127, others their share of it, rounded."""

    compression_type: int = runtime_pb2.CompressionType.BLOCKWISE_8BIT
    code: np.dtype[Any] = np.dtype(np.int8)

    @property
    def levels(self) -> int:
        """The number of levels on each side of zero."""
        return int(np.iinfo(self.code).max)

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encode values of any shape; one that is not finite spoils its block, which the decoder notices."""
        del info, allow_inplace
        values = tensor.detach().to("cpu", torch.float32).flatten()
        blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1, keepdim=True).div_(self.levels)  # (blocks, 1)
        shares = blocks / torch.where(scales == 0, torch.ones_like(scales), scales)
        levels = self._round(shares).clamp_(-self.levels, self.levels).nan_to_num_(0)
        codes = levels.numpy().astype(self.code).reshape(-1)[: len(values)]
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=scales.numpy().tobytes() + codes.tobytes(),
            size=tensor.shape,
            dtype="float32",
        )

    def _round(self, shares: torch.Tensor) -> torch.Tensor:
        return shares.round_()

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Decode the values. Raises `ValueError` if the bytes are not as many as the shape needs."""
        count = math.prod(serialized_tensor.size)
        blocks, bits = -(-count // BLOCK), 8 * self.code.itemsize
        if len(serialized_tensor.buffer) != blocks * SCALE_BYTES + count * self.code.itemsize:
            raise ValueError(f"{len(serialized_tensor.buffer)} bytes are not {count} values in {bits} bits by blocks")
        scales = np.frombuffer(serialized_tensor.buffer, np.float32, blocks)
        codes = np.zeros(blocks * BLOCK, np.float32)
        codes[:count] = np.frombuffer(serialized_tensor.buffer, self.code, count, blocks * SCALE_BYTES)
        with np.errstate(invalid="ignore", over="ignore"):  # of an infinite scale: who averages looks for such values
            values = codes.reshape(blocks, BLOCK) * scales[:, None]
        return torch.from_numpy(values.reshape(-1)[:count]).reshape(tuple(serialized_tensor.size))

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return the bytes on the wire for each byte of the tensor."""
        return (self.code.itemsize + SCALE_BYTES / BLOCK) / info.descriptor.dtype.itemsize


class RootCompression(BlockwiseCompression):
    """A code of two bytes a value for an optimizer's moments: the values' roots by blocks, with their signs.

    LAMB divides by the root of a second moment, so the root is what must be precise; and roots of values that differ by
    a factor of 10^8 still lie within the levels of one block. What is not zero stays so: a step may become a little
    smaller by rounding, never a division by nearly nothing.
    """

    compression_type = 16  # hivemind has no such code, and no number so high
    code = np.dtype(np.int16)

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encode values of any shape; one that is not finite spoils its block, which the decoder notices."""
        values = tensor.detach().to("cpu", torch.float32)
        return super().compress(values.abs().sqrt_().copysign_(values), info, allow_inplace)

    def _round(self, shares: torch.Tensor) -> torch.Tensor:
        return torch.where(shares == 0, shares, shares.abs().round_().clamp_(min=1).copysign_(shares))

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Decode the values. Raises `ValueError` if the bytes are not as many as the shape needs."""
        roots = super().extract(serialized_tensor)
        return roots * roots.abs()


BLOCKWISE = BlockwiseCompression()
ROOTS = RootCompression()
FLOAT16_LEAST = 2.0**-24  # between two values that are nearly zero
MAX_DIMENSIONS = 16
MOST_STRIDE = 2**63  # torch counts a tensor's strides in 64 bits, even where it has no values
_READERS: dict[int, CompressionBase] = {
    code.compression_type: code for code in (NoCompression(), Float16Compression(), BLOCKWISE)
}
_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "int8": 1}


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
        half_steps = (blocks.amax(dim=1) / BLOCKWISE.levels / 2).repeat_interleave(BLOCK)[: len(sizes)]
    elif compression_type == Float16Compression.compression_type:
        half_steps = (sizes * torch.finfo(torch.float16).eps / 2).clamp_min(FLOAT16_LEAST / 2)
    else:
        return 0.0
    return float(half_steps.norm())


def decode(message: runtime_pb2.Tensor, also: BlockwiseCompression = BLOCKWISE) -> torch.Tensor:
    """Decode the tensor in another peer's message. Raises `ValueError` if it is not exactly what it claims to be.

    Only the codes and dtypes that peers use are taken, and the code `also`: hivemind would take any of NumPy's, some of
    which are a thousand times larger in memory than on the wire, and would let the sender tie the tensor to an autograd
    graph.
    """
    readers = {**_READERS, also.compression_type: also}
    reader = readers.get(message.compression)
    if reader is None or message.dtype not in _DTYPE_BYTES or len(message.size) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor in code {message.compression} of dtype {message.dtype:.40} is not taken")
    width = 2 if message.compression == Float16Compression.compression_type else _DTYPE_BYTES[message.dtype]
    count = math.prod(message.size)
    if not isinstance(reader, BlockwiseCompression) and len(message.buffer) != count * width:
        raise ValueError(f"{len(message.buffer)} bytes are not {count} values of {width} bytes")
    if not count:
        if math.prod(size or 1 for size in message.size) >= MOST_STRIDE:
            raise ValueError(f"no tensor has the shape {tuple(message.size)}")
        return torch.zeros(tuple(message.size), dtype=getattr(torch, message.dtype))
    plain = runtime_pb2.Tensor(
        compression=message.compression, buffer=message.buffer, size=message.size, dtype=message.dtype
    )
    return reader.extract(plain).detach()
