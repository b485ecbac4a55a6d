"""Limits on the norms of averages that reducers return, from the averages of the last rounds.

A reducer could return numbers so large that nothing else of the step counts. All peers that have taken the last rounds
have taken the same averages, so all compute the same limits. The limits are wide, because gradients do jump. And they
give way: a round fails for a reducer's large averages once; then the reducer is accused (`peer.reduction.findings`) and
most leave it out. Where others return the same in its place, or it still reduces, the gradients have become that
large.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch

from peer.reduction.guard import norm_of

REMEMBERED_ROUNDS = 16
LEAST_ROUNDS = 4  # before that nothing is known
JUMP = 1000.0  # times the largest norm of these rounds


class AverageScreen:
    """A memory of the L2 norms of each tensor's averages in the last rounds, each half of a round by itself."""

    def __init__(self) -> None:
        self._norms: dict[bytes, deque[tuple[float, ...]]] = {}

    def accepted(self, half: bytes, averages: Sequence[torch.Tensor]) -> None:
        """Remember the norms of a round's averages."""
        norms = self._norms.setdefault(half, deque(maxlen=REMEMBERED_ROUNDS))
        norms.append(tuple(norm_of(average) for average in averages))

    def limits(self, half: bytes, tensors: int) -> list[float]:
        """Return the largest norm that any part of each tensor's average may have."""
        rounds = self._norms.get(half, ())
        if len(rounds) < LEAST_ROUNDS:
            return [math.inf] * tensors
        return [JUMP * max(norms) or math.inf for norms in zip(*rounds, strict=True)]
