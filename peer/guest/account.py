"""What one stay has used so far, over all of its workers."""

from __future__ import annotations

from dataclasses import replace

from peer.guest.limits import Limits
from peer.guest.readings import Readings
from peer.guest.traffic import Throttle
from peer.messages import Transferred

NOTHING = Transferred(0, 0)


class Account:
    """Adds up what the agent itself fetches and what its workers say."""

    def __init__(self, limits: Limits) -> None:
        self.fetching = Throttle(limits.download_rate)  # for the run's files, before the first worker starts
        self._ended, self._running = NOTHING, NOTHING  # the workers before, and the one that runs

    def take(self, transferred: Transferred) -> None:
        """What the worker that runs has sent and received since it started."""
        self._running = transferred

    def worker_ended(self) -> None:
        """The next one counts from zero."""
        ended, last = self._ended, self._running
        self._ended = Transferred(ended.sent_bytes + last.sent_bytes, ended.received_bytes + last.received_bytes)
        self._running = NOTHING

    def on(self, readings: Readings) -> Readings:
        """The machine's readings with this stay's traffic."""
        return replace(
            readings,
            sent_bytes=self._ended.sent_bytes + self._running.sent_bytes,
            received_bytes=self._ended.received_bytes + self._running.received_bytes + self.fetching.total_bytes,
        )
