"""Wire compression: gradients in 32, 16 or blockwise 8 bits; moments in 16 bits.

In blockwise compression, each block of 128 values has its own scale, so a rare large gradient
reduces only the precision of its block. hivemind's own needs bitsandbytes, a large download.

Equal bytes decode to equal bits on any machine: each value is an integer times a float32.
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
    """Compression to one byte per value, in units of 1/127 of the largest magnitude in its block."""

    compression_type: int = runtime_pb2.CompressionType.BLOCKWISE_8BIT
    code: np.dtype[Any] = np.dtype(np.int8)

    @property
    def levels(self) -> int:
        """The number of levels on each side of zero."""
        return int(np.iinfo(self.code).max)

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encode values of any shape; a non-finite value makes its block non-finite."""
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
        """Decode the values. Raises `ValueError` if the bytes do not fit the shape."""
        count, content = math.prod(serialized_tensor.size), serialized_tensor.buffer
        blocks = -(-count // BLOCK)
        if len(content) != blocks * SCALE_BYTES + count * self.code.itemsize:
            raise ValueError(f"{len(content)} bytes are not {count} values in {8 * self.code.itemsize} bits by blocks")
        scales = np.frombuffer(content, np.float32, blocks)
        codes = np.zeros(blocks * BLOCK, np.float32)
        codes[:count] = np.frombuffer(content, self.code, count, blocks * SCALE_BYTES)
        with np.errstate(invalid="ignore", over="ignore"):  # an infinite scale gives values that the reducer rejects
            values = codes.reshape(blocks, BLOCK) * scales[:, None]
        return torch.from_numpy(values.reshape(-1)[:count]).reshape(tuple(serialized_tensor.size))

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return the bytes on the wire per byte of the tensor."""
        return (self.code.itemsize + SCALE_BYTES / BLOCK) / info.descriptor.dtype.itemsize


class RootCompression(BlockwiseCompression):
    """Compression of an optimizer's moments to two bytes per value: signed square roots in blocks.

    LAMB divides by the root of a second moment, so the root must be precise. The roots of values
    that differ by a factor of 10^8 fit into the levels of one block. Nonzero values stay nonzero:
    rounding may shrink a step slightly, but never causes a division by nearly zero.
    """

    compression_type = 16  # not among hivemind's own codes, which are all lower
    code = np.dtype(np.int16)

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encode values of any shape; a non-finite value makes its block non-finite."""
        values = tensor.detach().to("cpu", torch.float32)
        return super().compress(values.abs().sqrt_().copysign_(values), info, allow_inplace)

    def _round(self, shares: torch.Tensor) -> torch.Tensor:
        return torch.where(shares == 0, shares, shares.abs().round_().clamp_(min=1).copysign_(shares))

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Decode the values. Raises `ValueError` if the bytes do not fit the shape."""
        roots = super().extract(serialized_tensor)
        return roots * roots.abs()


BLOCKWISE = BlockwiseCompression()
ROOTS = RootCompression()
FLOAT16_LEAST = 2.0**-24  # distance between the smallest float16 values
MAX_DIMENSIONS = 16
MOST_STRIDE = 2**63  # torch computes strides as 64-bit integers, even for empty tensors
_CODES: dict[int, CompressionBase] = {
    code.compression_type: code for code in (NoCompression(), Float16Compression(), BLOCKWISE)
}
_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "int8": 1}


def compression_of(name: Compression) -> CompressionBase:
    """Return the compression for the value of `averaging.compression` in a run file."""
    known: dict[Compression, CompressionBase] = {
        "none": NoCompression(),
        "float16": Float16Compression(),
        "8bit-blockwise": BLOCKWISE,
    }
    return known[name]


def encode(tensor: torch.Tensor, compression_type: int) -> runtime_pb2.Tensor:
    """Encode a CPU tensor for the wire with this compression (hivemind's enumeration)."""
    code = _CODES.get(compression_type)
    if isinstance(code, BlockwiseCompression):
        return code.compress(tensor, CompressionInfo.from_tensor(tensor))
    return serialize_torch_tensor(tensor, compression_type)


def half_steps(values: torch.Tensor, compression_type: int) -> torch.Tensor:
    """Return the largest possible rounding error of each decoded value, (values,) float64."""
    sizes, code = values.flatten().double().abs(), _CODES.get(compression_type)
    if isinstance(code, BlockwiseCompression):
        blocks = torch.nn.functional.pad(sizes, (0, -len(sizes) % BLOCK)).view(-1, BLOCK)
        return (blocks.amax(dim=1) / code.levels / 2).repeat_interleave(BLOCK)[: len(sizes)]
    if isinstance(code, Float16Compression):
        return (sizes * torch.finfo(torch.float16).eps / 2).clamp_min(FLOAT16_LEAST / 2)
    return torch.zeros_like(sizes)


def decode(message: runtime_pb2.Tensor, *also: CompressionBase) -> torch.Tensor:
    """Decode the tensor in another peer's message.

    Raises `ValueError` if the tensor is malformed, if its dtype is not a common one, or if its
    compression is neither a common one nor in `also`: other compressions could lose most of an
    average. Unlike hivemind, this function rejects NumPy dtypes that are a thousand times larger in
    memory than on the wire, and never builds an autograd graph.
    """
    readers = {**_CODES, **{code.compression_type: code for code in also}}
    reader = readers.get(message.compression)
    if reader is None or message.dtype not in _DTYPE_BYTES or len(message.size) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor in code {message.compression} of dtype {message.dtype:.40} is not taken")
    width = 2 if message.compression == Float16Compression.compression_type else _DTYPE_BYTES[message.dtype]
    count = math.prod(message.size)
    if isinstance(reader, (NoCompression, Float16Compression)) and len(message.buffer) != count * width:
        raise ValueError(f"{len(message.buffer)} bytes are not {count} values of {width} bytes")
    if not count:
        if math.prod(size or 1 for size in message.size) >= MOST_STRIDE:
            raise ValueError(f"no tensor has the shape {tuple(message.size)}")
        return torch.zeros(tuple(message.size), dtype=getattr(torch, message.dtype))
    plain = runtime_pb2.Tensor(
        compression=message.compression, buffer=message.buffer, size=message.size, dtype=message.dtype
    )
    return reader.extract(plain).detach()


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all values are finite."""
    return bool(torch.isfinite(tensor).all())
