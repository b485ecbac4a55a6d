"""The line's rate that this peer declares to its groups: measured when it joined, then corrected by its rounds.

A round is as fast as the slowest line in it, so what a round passed is only a lower bound of a peer's own line: a
moving average of it may raise the estimate, and nothing in it lowers it. A round that failed, or took much longer than
the declared lines had promised, is a reason to doubt them, this one too; a doubtful line is measured again with the
coordinator, and that measurement counts either way. Pure decisions; `peer.swarm.step_rounds` and `peer.training.worker`
ask.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from peer.averaging.declarations import MAX_BANDWIDTH

LEAST_BYTES = 2**20  # in each direction; less may all lie in buffers on the way, and says nothing of the line
RISE = 0.5  # of the difference, for each round that passed more than was thought possible
SLOW_TIMES, SLOW_S = 2.0, 5.0  # a round is slow above so many times what was promised, and so many seconds more
DOUBTFUL_ROUNDS = 2  # slow ones in succession
SOONEST_S, LATEST_S = 180.0, 6 * 3600.0  # between measurements; the latest because a line may also get faster
SPREAD_S = 60.0  # in which all who doubt after the same round ask
SAME = 0.25  # a measurement that differs by less confirms the estimate


@dataclass(frozen=True)
class RoundTraffic:
    """The traffic of one round over this peer's line, and its duration."""

    sent_bytes: float
    received_bytes: float
    seconds: float
    promised_s: float  # by the lines that the group declared; 0.0 where none is known

    @property
    def rate(self) -> float | None:
        """Bytes per second that the line's slower direction has at least; None where too few bytes moved."""
        moved = min(self.sent_bytes, self.received_bytes)
        return moved / self.seconds if moved >= LEAST_BYTES and self.seconds > 0 else None

    @property
    def is_slow(self) -> bool:
        """Whether the lines cannot be what they were declared to be, one of them at least."""
        return self.promised_s > 0 and self.seconds > SLOW_TIMES * self.promised_s + SLOW_S


class LineEstimate:
    """One peer's line in bytes per second, estimated; None (no known limit) never changes."""

    def __init__(self, rate: float | None, clock: Callable[[], float], rng: random.Random) -> None:
        self.rate = rate
        self._clock, self._rng = clock, rng
        self._slow_rounds = 0
        self._is_doubted = False
        self._patience_s = SOONEST_S
        self._measured_at = clock()
        self._due_at = clock() + LATEST_S

    def passed(self, traffic: RoundTraffic) -> None:
        """Take in the traffic of a successful round."""
        if self.rate is None:
            return
        if traffic.rate is not None and traffic.rate > self.rate:
            self.rate = min(MAX_BANDWIDTH, self.rate + RISE * (traffic.rate - self.rate))
        if traffic.is_slow:
            self.failed()
        else:
            self._slow_rounds = 0

    def failed(self) -> None:
        """Take in that a round broke off, or was slow: the line may not be what it was."""
        self._slow_rounds += 1
        if self._slow_rounds == DOUBTFUL_ROUNDS:
            self.doubt()

    def doubt(self) -> None:
        """Have the line measured again once its last measurement is old enough."""
        if self._is_doubted:
            return
        self._is_doubted = True
        soonest = max(self._clock(), self._measured_at + self._patience_s)
        self._due_at = min(self._due_at, soonest + self._rng.uniform(0, SPREAD_S))

    def is_due(self) -> bool:
        """Return whether to measure the line now; true once, as an answer may never come."""
        if self.rate is None or self._clock() < self._due_at:
            return False
        self._measured_at = self._clock()
        self._due_at = self._measured_at + LATEST_S
        self._slow_rounds, self._is_doubted = 0, False
        return True

    def measured(self, rate: float) -> None:
        """Take in a measurement. As long as measurements confirm the estimate, doubts are followed ever more rarely."""
        if self.rate is None or not 0 < rate <= MAX_BANDWIDTH:
            return
        confirmed = abs(rate - self.rate) < SAME * self.rate
        self._patience_s = min(LATEST_S, 2 * self._patience_s) if confirmed else SOONEST_S
        self.rate = rate
