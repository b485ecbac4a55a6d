"""The averages of recent global steps, which the keeper stores for peers that fell behind.

All peers compute the same next state from the same state and average. A peer that is a few steps
behind therefore downloads only the missed averages instead of the whole state, which takes 8 bytes
per value. An average is sent in its original encoding (2, 1.03 or 0.53 bytes per value), or in 4
bytes per value if that would lose precision (`peer.swarm.transfers.encode_average`). With PowerSGD,
the factors of an average are sent.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from hivemind.proto import runtime_pb2

from peer.protocol import HELD_AVERAGES

HELD_BYTES = 12  # of averages that are held at most, per value of the model: 1.5 times a state's size


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
    voters: tuple[str, ...] = ()  # IDs of the peers that averaged

    @property
    def size(self) -> int:
        """The bytes of this average."""
        return sum(self.sizes)

    def copy(self) -> Average:
        """Return a copy in private memory, because a received average is in shared memory."""
        return Average(self.encoded.clone(), self.sizes, self.voters)

    def tensors(self) -> Iterator[runtime_pb2.Tensor]:
        """Yield the encoded tensors, in the order of the parameters."""
        ends = list(itertools.accumulate(self.sizes))
        for start, end in zip([0, *ends], ends, strict=False):
            yield runtime_pb2.Tensor.FromString(self.encoded[start:end].numpy().tobytes())


def averages_held(average_bytes: int, values: int) -> int:
    """Return for how many steps averages of this size are held at least; `values`: of the model."""
    return max(HELD_AVERAGES, HELD_BYTES * values // average_bytes)


class AverageHistory:
    """The averages of the most recent consecutive steps of one era."""

    def __init__(self, most_bytes: int) -> None:
        """Hold the newest `HELD_AVERAGES` averages, and as many more as `most_bytes` allow."""
        self._most_bytes, self._bytes = most_bytes, 0
        self._position = (-1, -1)  # era and step of the newest average
        self._averages = deque[Average]()

    def keep(self, era: int, step: int, average: Average) -> None:
        """Add the average that led to `step`; drop the earlier averages if there is a gap."""
        if self._position != (era, step - 1):
            self.begin(era, step)
        self._position = (era, step)
        self._averages.append(average)
        self._bytes += average.size
        while len(self._averages) > HELD_AVERAGES and self._bytes > self._most_bytes:
            self._bytes -= self._averages.popleft().size

    def begin(self, era: int, step: int) -> None:
        """Start an empty history at a state downloaded from another peer."""
        self._position, self._bytes = (era, step), 0
        self._averages.clear()

    def after(self, era: int, step: int) -> Average | Lack:
        """Return the average that led to the step after `step`, or the reason why it is missing."""
        newest_era, newest = self._position
        if era == newest_era and newest <= step:
            return Lack.NOT_YET
        if era != newest_era or newest - step > len(self._averages):
            return Lack.GONE
        return self._averages[step - newest]
