"""How fast something may happen: a token bucket."""

from __future__ import annotations


class Pace:
    """Allows `burst` events at once and `per_second` in the long run."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._level, self._at = burst, now

    def take(self, now: float) -> float:
        """Count one event and return how many seconds it came too early: 0.0 where it is within the pace."""
        self._refill(now)
        self._level -= 1.0
        return max(0.0, -self._level / self._per_second)

    def allows(self, now: float) -> bool:
        """Count one event if it is within the pace, and say whether it was."""
        self._refill(now)
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._per_second)
        self._at = now
