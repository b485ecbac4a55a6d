"""Sparse compression of gradients: the 64 largest of each chunk of 4096 values, in 2 bits each.

Sarfi et al. 2025 (SparseLoCo, arXiv 2508.15706) show that so few values suffice for training if
each peer adds its unsent values to its next gradient (`peer.gradients.error_feedback`). A value's 2
bits are its sign and one of two magnitudes of its chunk; its index within the chunk takes 12 bits.
In a shorter chunk at the end of a tensor, one value in 64 is sent, rounded up.

Compression is idempotent. A peer can sparsify its gradient once, and then split it into parts of
whole chunks without further loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2
from numpy.typing import NDArray

from peer.reduction.sizes import CHUNK, CHUNK_BYTES, CHUNK_SENT, SCALE_BYTES

MOST_DECODED = 2**20  # maximum number of values per part, which take 137 times their wire size in memory
REFINEMENTS = 3  # iterations for a chunk's two magnitudes
_SCALE = np.dtype("<f4")


@dataclass(frozen=True)
class SparseValues:
    """The values of a tensor that a peer sends, and their positions."""

    count: int  # number of values in the tensor
    places: torch.Tensor  # (sent,) int64: indices in the flat tensor, ascending
    scales: torch.Tensor  # (chunks, 2) float32: smaller and larger magnitude of each chunk
    codes: torch.Tensor  # (sent,) uint8: bit 0 for the larger magnitude, bit 1 for a negative value

    @classmethod
    def largest_of(cls, tensor: torch.Tensor) -> SparseValues:
        """Select each chunk's largest values; a non-finite value makes the chunk's scale non-finite."""
        values = tensor.detach().to("cpu", torch.float32).flatten()
        whole = len(values) // CHUNK * CHUNK
        places, scales, codes = [], [], []
        for begin, rows in ((0, values[:whole].view(-1, CHUNK)), (whole, values[whole:].view(1, -1))):
            if not rows.numel():
                continue
            length = rows.shape[1]
            indices = rows.abs().topk(sent_of(length), dim=1, sorted=False).indices.sort(dim=1).values
            chosen = rows.gather(1, indices)
            of_rows, is_larger = _two_magnitudes(chosen.abs())
            is_negative = (chosen < 0) & (of_rows.gather(1, is_larger.long()) > 0)
            places.append((indices + begin + length * torch.arange(len(rows))[:, None]).flatten())
            scales.append(of_rows)
            codes.append((is_larger.byte() | is_negative.byte() << 1).flatten())
        if not places:
            return cls(0, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2), torch.zeros(0, dtype=torch.uint8))
        return cls(len(values), torch.cat(places), torch.cat(scales), torch.cat(codes))

    def dense(self) -> torch.Tensor:
        """Return all values, (count,) float32, with zeros for unsent values."""
        values = torch.zeros(self.count)
        magnitudes = self.scales[self.places // CHUNK, (self.codes & 1).long()]
        values[self.places] = torch.where(self.codes >= 2, -magnitudes, magnitudes)
        return values

    def packed(self) -> bytes:
        """Return the wire format: all scales, then all indices, then all codes."""
        indices = _padded((self.places % CHUNK).numpy().astype(np.uint16), 2)
        first, second = indices[::2], indices[1::2]
        pairs = np.stack([first & 0xFF, first >> 8 | (second & 0xF) << 4, second >> 4], axis=1).astype(np.uint8)
        quarters = _padded(self.codes.numpy(), 4).reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)
        scales, codes = self.scales.numpy().astype(_SCALE), np.bitwise_or.reduce(quarters, axis=1)
        return scales.tobytes() + pairs.tobytes() + codes.tobytes()

    @classmethod
    def unpacked(cls, content: bytes, count: int) -> SparseValues:
        """Parse the bytes of a tensor of `count` values. Raises `ValueError` if they are malformed."""
        sent, chunks = sent_of(count), -(-count // CHUNK)
        scale_bytes, index_bytes, code_bytes = 2 * SCALE_BYTES * chunks, 3 * (-(-sent // 2)), -(-sent // 4)
        if len(content) != scale_bytes + index_bytes + code_bytes:
            raise ValueError(f"{len(content)} bytes are not {count} values of which one in {CHUNK // CHUNK_SENT} came")
        scales = np.frombuffer(content, _SCALE, 2 * chunks).astype(np.float32).reshape(-1, 2)
        if not (np.isfinite(scales).all() and (scales[:, 0] >= 0).all() and (scales[:, 0] <= scales[:, 1]).all()):
            raise ValueError("a chunk's magnitudes are not two finite numbers in their order")
        pairs = np.frombuffer(content, np.uint8, index_bytes, scale_bytes).reshape(-1, 3).astype(np.int64)
        indices = np.stack([pairs[:, 0] | (pairs[:, 1] & 0xF) << 8, pairs[:, 1] >> 4 | pairs[:, 2] << 4], axis=1)
        quarters = np.frombuffer(content, np.uint8, code_bytes, scale_bytes + index_bytes)
        codes = (quarters[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
        if indices.reshape(-1)[sent:].any() or codes[sent:].any():
            raise ValueError("bits behind the last value are set")
        places = np.arange(sent) // CHUNK_SENT * CHUNK + indices.reshape(-1)[:sent]
        if sent and (places[-1] >= count or (np.diff(places) <= 0).any()):
            raise ValueError("a chunk's indices are not ascending, or one is out of its range")
        return cls(count, torch.from_numpy(places), torch.from_numpy(scales), torch.from_numpy(codes[:sent]))


def sent_of(count: int) -> int:
    """Return the number of values sent out of `count`: one in 64, rounded up."""
    return -(-count * CHUNK_SENT // CHUNK)


def _two_magnitudes(sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two magnitudes per row, (rows, 2), and the mask of the larger values, (rows, sent).

    The magnitudes are the means of two groups, found by Lloyd's method. The smaller one is zero if
    any value is zero, so zeros stay zero. A row with only two magnitudes keeps them exactly.
    """
    least, most = sizes.amin(dim=1, keepdim=True), sizes.amax(dim=1, keepdim=True)
    smaller, larger = least, most
    for _ in range(REFINEMENTS):
        is_larger = sizes - smaller > larger - sizes
        above, below = torch.where(is_larger, sizes, torch.inf), torch.where(is_larger, -torch.inf, sizes)
        numbers = is_larger.sum(dim=1, keepdim=True)
        mean = (sizes * is_larger).sum(dim=1, keepdim=True) / numbers.clamp(min=1)
        larger = torch.where(numbers > 0, mean.clamp(above.amin(dim=1, keepdim=True), most), larger)
        mean = (sizes * ~is_larger).sum(dim=1, keepdim=True) / (sizes.shape[1] - numbers).clamp(min=1)
        smaller = torch.where(least > 0, mean.clamp(least, below.amax(dim=1, keepdim=True)), least)
    return torch.cat([smaller, larger], dim=1), sizes - smaller > larger - sizes


def _padded(values: NDArray[Any], multiple: int) -> NDArray[Any]:
    return np.pad(values, (0, -len(values) % multiple))


class TopKCompression(CompressionBase):
    """Sparse compression with hivemind's interface, for parts that consist of whole chunks."""

    compression_type: int = 17  # not among hivemind's own codes, which are all lower

    def compress(self, tensor: torch.Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encode values of any shape."""
        del info, allow_inplace
        content = SparseValues.largest_of(tensor).packed()
        return runtime_pb2.Tensor(compression=self.compression_type, buffer=content, size=tensor.shape, dtype="float32")

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> torch.Tensor:
        """Decode the values. Raises `ValueError` if they are malformed or too many."""
        count = math.prod(serialized_tensor.size)
        if count > MOST_DECODED:
            raise ValueError(f"a part has {MOST_DECODED} values at most, and not {count}")
        values = SparseValues.unpacked(serialized_tensor.buffer, count).dense()
        return values.reshape(tuple(serialized_tensor.size))

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Return the bytes on the wire per byte of the tensor."""
        return CHUNK_BYTES / CHUNK / info.descriptor.dtype.itemsize


TOP_K = TopKCompression()
