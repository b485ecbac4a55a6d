"""How large the swarm's averages usually are: the norms of each tensor's averages in the last rounds.

Every peer receives all averages, whatever it reduces, so every peer knows them. `peer.part_screen` measures by them
what a sender brings.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

REMEMBERED_ROUNDS = 16
LEAST_ROUNDS = 4  # before that nothing is usual
SPREADS = 6.0  # above the median
SPREAD_OF_DEVIATION = 1.4826  # the median absolute deviation of a normal distribution to its standard deviation
LEAST_FACTOR, MOST_FACTOR = 4.0, 32.0  # of the median, however alike or unlike the rounds are


def usual_limit(norms: Sequence[float]) -> float:
    """The largest norm that is not unusual after these: the median and some spreads, on a logarithmic scale.

    0 where most of them are zero.
    """
    logs = [math.log(norm) for norm in norms if norm > 0]
    if 2 * len(logs) <= len(norms):
        return 0.0
    middle = median(logs)
    spread = SPREADS * SPREAD_OF_DEVIATION * median(abs(value - middle) for value in logs)
    return math.exp(middle) * min(MOST_FACTOR, max(LEAST_FACTOR, math.exp(min(spread, 100.0))))


class NormHistory:
    """The L2 norms of the averages that this peer has taken, of every tensor."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, ...]] = deque(maxlen=REMEMBERED_ROUNDS)

    def add(self, norms: Sequence[float]) -> None:
        """A round has brought averages of these norms, in the tensors' order."""
        self._rounds.append(tuple(norms))

    def medians(self) -> list[float] | None:
        """The usual norm of each tensor's average; None before there is a history."""
        return (
            None if len(self._rounds) < LEAST_ROUNDS else [median(norms) for norms in zip(*self._rounds, strict=True)]
        )

    def limits(self) -> list[float] | None:
        """`usual_limit` of each tensor; None before there is a history."""
        if len(self._rounds) < LEAST_ROUNDS:
            return None
        return [usual_limit(norms) for norms in zip(*self._rounds, strict=True)]
