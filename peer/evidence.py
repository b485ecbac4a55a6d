"""What a peer keeps of one all-reduce until its reducers have been looked after (`peer.audit`).

Of its own: the bytes that it sent, of each part; a reducer's own parts too, which never travelled. Of what the reducers
returned: a digest of each one's averages, and one part's average, drawn in secret before the first answer came, so that
no reducer can know which of its answers will be checked.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import torch
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.compression import encode
from peer.recombination import Returned

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Drawn:
    """One part of one reducer, both counted from 0, in the group's order and in the reducer's."""

    reducer: int
    part: int


class Evidence:
    """Filled while the round runs."""

    def __init__(self, *, parts: Sequence[int], own: int, weight: float, rng: random.Random) -> None:
        """`parts`: how many each peer of the group reduces; `own`: which of them this one is."""
        self.weight = weight
        self.drawn = draw(parts, own, rng)
        self.returned: Returned | None = None  # of the part that was drawn
        self._own = own
        self._parts = tuple(parts)
        self._sent: list[list[runtime_pb2.Tensor]] = [[] for _ in parts]
        self._hashes = [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in parts]

    @property
    def digests(self) -> list[bytes]:
        """Of each reducer's averages; empty for who reduced nothing."""
        return [found.digest() if count else b"" for found, count in zip(self._hashes, self._parts, strict=True)]

    def sent(self, drawn: Drawn) -> runtime_pb2.Tensor | None:
        """This peer's input of a part; None if there is no such part, or it has no weight and so no input."""
        if drawn.reducer < len(self._sent) and drawn.part < len(self._sent[drawn.reducer]):
            return self._sent[drawn.reducer][drawn.part]
        return None

    async def keep_sent(
        self, reducer: int, messages: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """These messages, all parts for one reducer; what has no weight need not be kept."""
        async for message in messages:
            if self.weight:
                self._sent[reducer].append(message.tensor_part)
            yield message

    def keep_own(self, part: torch.Tensor) -> None:
        """The next part that this peer reduces itself, as it added it."""
        if self.weight:
            self._sent[self._own].append(encode(part, runtime_pb2.CompressionType.NONE))

    def keep_returned(self, drawn: Drawn, wire: runtime_pb2.Tensor, average: torch.Tensor, weight: float = 0.0) -> None:
        """The next part that a reducer returned; its parts must come in order."""
        self._hashes[drawn.reducer].update(wire.buffer)
        if drawn == self.drawn:
            self.returned = Returned(average, weight, wire.compression)


def draw(parts: Sequence[int], own: int, rng: random.Random) -> Drawn | None:
    """One of all the parts that others reduce, each as likely; None if there is none."""
    others = [0 if index == own else count for index, count in enumerate(parts)]
    if not any(others):
        return None
    place = rng.randrange(sum(others))
    for reducer, count in enumerate(others):
        if place < count:
            return Drawn(reducer, place)
        place -= count
    raise AssertionError("the place is below the sum")
