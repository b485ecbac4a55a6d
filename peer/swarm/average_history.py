"""The averages of recent global steps, which the keeper stores for peers that fell behind.

All peers compute the same next state from the same state and average. A peer that is a few steps
behind therefore downloads only the missed averages instead of the whole state, which takes 8 bytes
per value. An average is sent in its original encoding (2, 1.03 or 0.53 bytes per value), or in 4
bytes per value if that would lose precision. With PowerSGD, the factors of an average are sent.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from hivemind.compression import CompressionBase, CompressionInfo, NoCompression
from hivemind.proto import runtime_pb2

from peer.averaging.all_reduce import is_finite
from peer.averaging.gradient_codes import Factors
from peer.averaging.power_sgd import as_matrix, product
from peer.config.training import Compression
from peer.protocol import HELD_AVERAGES
from peer.reduction.compression import average_code_of, decode
from peer.reduction.sizes import shrinks


class Lack(str, Enum):
    """The reason why a donor cannot provide an average."""

    NOT_YET = "not yet"  # the donor has not taken this step yet
    GONE = "gone"  # the donor has only averages of later steps
    BUSY = "busy"  # the donor is serving other peers
    SILENT = "silent"  # no donor responds


@dataclass(frozen=True)
class Average:
    """One step's average gradient, encoded."""

    encoded: torch.Tensor  # (bytes,) uint8: the serialized tensors, concatenated
    sizes: Sequence[int]  # bytes of each serialized tensor

    def copy(self) -> Average:
        """Return a copy in private memory, because a received average is in shared memory."""
        return Average(self.encoded.clone(), self.sizes)

    def tensors(self) -> Iterator[runtime_pb2.Tensor]:
        """Yield the encoded tensors, in the order of the parameters."""
        ends = list(itertools.accumulate(self.sizes))
        for start, end in zip([0, *ends], ends, strict=False):
            yield runtime_pb2.Tensor.FromString(self.encoded[start:end].numpy().tobytes())


class AverageHistory:
    """The averages of the most recent consecutive steps of one era."""

    def __init__(self) -> None:
        self._position = (-1, -1)  # era and step of the newest average
        self._averages: deque[Average] = deque(maxlen=HELD_AVERAGES)

    def keep(self, era: int, step: int, average: Average) -> None:
        """Add the average that led to `step`; drop the earlier averages if there is a gap."""
        if self._position != (era, step - 1):
            self._averages.clear()
        self._position = (era, step)
        self._averages.append(average)

    def begin(self, era: int, step: int) -> None:
        """Start an empty history at a state downloaded from another peer."""
        self._position = (era, step)
        self._averages.clear()

    def after(self, era: int, step: int) -> Average | Lack:
        """Return the average that led to the step after `step`, or the reason why it is missing."""
        newest_era, newest = self._position
        if era == newest_era and newest <= step:
            return Lack.NOT_YET
        if era != newest_era or newest - step > len(self._averages):
            return Lack.GONE
        return self._averages[step - newest]


def encode_average(
    tensors: Iterable[torch.Tensor], factors: Mapping[int, Factors], compression: Compression
) -> Average:
    """Encode a step's average gradient losslessly.

    `factors` maps a tensor's index to its PowerSGD factors, which replace the tensor if their
    product equals it. `compression`: the round's setting, which determines the encoding.
    """
    code = average_code_of(compression)
    parts: list[torch.Tensor] = []
    for index, tensor in enumerate(tensors):
        made_of = factors.get(index)
        if made_of is None or not torch.equal(product(*made_of), as_matrix(tensor)):
            parts.append(tensor)
        else:
            parts += made_of
    serialized = [_exact(part, key, code).SerializeToString() for key, part in enumerate(parts)]
    encoded = torch.frombuffer(bytearray(b"".join(serialized)), dtype=torch.uint8)
    encoded.share_memory_()  # type: ignore[no-untyped-call]
    return Average(encoded, [len(each) for each in serialized])


def whole_average(parts: Iterable[torch.Tensor], shapes: Iterable[torch.Size]) -> list[torch.Tensor] | None:
    """Rebuild tensors of these shapes from received, finite parts; return None on a mismatch."""
    found, rest = list[torch.Tensor](), iter(parts)
    for shape in shapes:
        part = next(rest, None)
        if part is not None and part.shape != shape:
            right = next(rest, None)
            part = None if right is None else _matrix_of(part, right, shape)
        if part is None:
            return None
        found.append(part)
    return found if next(rest, None) is None else None


def _matrix_of(left: torch.Tensor, right: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Multiply two factors into a tensor of this shape; return None on a mismatch or overflow."""
    rank = len(left) if left.dim() else 0
    sides = torch.Size((rank, shape[0])), torch.Size((rank, math.prod(shape[1:])))
    if (left.shape, right.shape) != sides or not shrinks(shape, rank):
        return None
    made = product(left, right).view(shape)
    return made if is_finite(made) else None


def _exact(tensor: torch.Tensor, key: int, code: CompressionBase) -> runtime_pb2.Tensor:
    """Encode float32 values with `code` if that is lossless (as for averages), else in 32 bits."""
    info = CompressionInfo.from_tensor(tensor, key=key)
    encoded = code.compress(tensor, info)
    return encoded if torch.equal(decode(encoded, code), tensor) else NoCompression().compress(tensor, info)
