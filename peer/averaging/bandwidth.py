"""An estimate of this peer's bandwidth: measured on joining, then corrected by rounds.

A round is as fast as its slowest connection, so a round's traffic is only a lower bound: it may
raise the estimate (by a moving average), but never lower it. A failed round, or a round much slower
than expected from the declared rates, makes all these rates doubtful, including this peer's. A
doubtful estimate is replaced by a new measurement with the coordinator. These pure decisions are
used by `peer.swarm.step_rounds` and `peer.training.worker`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from peer.averaging.declarations import MAX_BANDWIDTH

LEAST_BYTES = 2**20  # minimum transfer in each direction; a smaller one may fit into buffers and proves nothing
RISE = 0.5  # fraction of the difference by which a faster round raises the estimate
SLOW_TIMES, SLOW_S = 2.0, 5.0  # a round is slow above `SLOW_TIMES` times the expected time plus `SLOW_S`
DOUBTFUL_ROUNDS = 2  # successive slow rounds after which the estimate is doubtful
SOONEST_S, LATEST_S = 180.0, 6 * 3600.0  # bounds of the interval between measurements
SPREAD_S = 60.0  # random spread of the peers' measurements after the same round
SAME = 0.25  # relative difference below which a measurement confirms the estimate


@dataclass(frozen=True)
class RoundTraffic:
    """The traffic of one round over this peer's connection, and its duration."""

    sent_bytes: float
    received_bytes: float
    seconds: float
    promised_s: float  # expected from the group's declared rates; 0.0: unknown

    @property
    def rate(self) -> float | None:
        """A lower bound on the slower direction's bytes per second; None for a small transfer."""
        moved = min(self.sent_bytes, self.received_bytes)
        return moved / self.seconds if moved >= LEAST_BYTES and self.seconds > 0 else None

    @property
    def is_slow(self) -> bool:
        """Whether the round took much longer than expected from the declared rates."""
        return self.promised_s > 0 and self.seconds > SLOW_TIMES * self.promised_s + SLOW_S


class LineEstimate:
    """An estimate of a peer's bandwidth in bytes per second; None (unlimited) never changes."""

    def __init__(self, rate: float | None, clock: Callable[[], float], rng: random.Random) -> None:
        self.rate = rate
        self._clock, self._rng = clock, rng
        self._slow_rounds = 0
        self._is_doubted = False
        self._patience_s = SOONEST_S
        self._measured_at = clock()
        self._due_at = clock() + LATEST_S

    def passed(self, traffic: RoundTraffic) -> None:
        """Update the estimate with the traffic of a successful round."""
        if self.rate is None:
            return
        if traffic.rate is not None and traffic.rate > self.rate:
            self.rate = min(MAX_BANDWIDTH, self.rate + RISE * (traffic.rate - self.rate))
        if traffic.is_slow:
            self.failed()
        else:
            self._slow_rounds = 0

    def failed(self) -> None:
        """Record a failed or slow round, which may indicate a slower connection."""
        self._slow_rounds += 1
        if self._slow_rounds == DOUBTFUL_ROUNDS:
            self.doubt()

    def doubt(self) -> None:
        """Request a new measurement once the last one is old enough."""
        if self._is_doubted:
            return
        self._is_doubted = True
        soonest = max(self._clock(), self._measured_at + self._patience_s)
        self._due_at = min(self._due_at, soonest + self._rng.uniform(0, SPREAD_S))

    def is_due(self) -> bool:
        """Return whether to measure now; if so, set the next time, as the measurement may fail."""
        if self.rate is None or self._clock() < self._due_at:
            return False
        self._measured_at = self._clock()
        self._due_at = self._measured_at + LATEST_S
        self._slow_rounds, self._is_doubted = 0, False
        return True

    def measured(self, rate: float) -> None:
        """Apply a measurement; if it confirms the estimate, double the interval to the next one."""
        if self.rate is None or not 0 < rate <= MAX_BANDWIDTH:
            return
        confirmed = abs(rate - self.rate) < SAME * self.rate
        self._patience_s = min(LATEST_S, 2 * self._patience_s) if confirmed else SOONEST_S
        self.rate = rate
