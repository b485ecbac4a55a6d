"""One peer's training rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

SMOOTHING = 0.1  # weight of the newest microbatch in the average


class SampleRate:
    """The average of a peer's seconds per sample, weighted exponentially towards the newest.

    The average is divided by the sum of its weights, as in Adam (Kingma and Ba 2015, section 3).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Set up the rate; `clock` returns local seconds."""
        self._clock, self._began_at = clock, clock()
        self._sample_s, self._weight = 0.0, 0.0

    @property
    def per_second(self) -> float:
        """The samples per second; 0 before the first microbatch."""
        return self._weight / self._sample_s if self._sample_s else 0.0

    def computed(self, samples: int) -> None:
        """Add a microbatch, computed since the last one or since `restart`."""
        seconds = self._clock() - self._began_at
        self.restart()
        self._sample_s += SMOOTHING * (seconds / samples - self._sample_s)
        self._weight += SMOOTHING * (1 - self._weight)

    def restart(self) -> None:
        """Measure the next microbatch from now on."""
        self._began_at = self._clock()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out the time in which this peer does not compute."""
        paused_at = self._clock()
        try:
            yield
        finally:
            self._began_at = self._clock() - max(0.0, paused_at - self._began_at)
