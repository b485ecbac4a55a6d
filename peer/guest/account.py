"""What one stay has used so far, over all of its workers."""

from __future__ import annotations

from dataclasses import replace

from peer.guest.energy import NOT_KNOWN, Energy
from peer.guest.events import Used
from peer.guest.limits import Limits
from peer.guest.memory_use import group_memory
from peer.guest.readings import Readings
from peer.guest.traffic import Throttle
from peer.messages import Transferred

NOTHING = Transferred(0, 0)


class Account:
    """Adds up what the agent itself fetches, what its workers say, and what the machine used while one of them ran."""

    def __init__(self, limits: Limits) -> None:
        self.fetching = Throttle(limits.download_rate)  # for the run's files, before the first worker starts
        self._limits = limits
        self._group: int | None = None  # the worker's process group
        self._ended, self._running = NOTHING, NOTHING  # the workers before, and the one that runs
        self._meter, self._energy = NOT_KNOWN, NOT_KNOWN  # as read last; what of it counts

    def worker_started(self, group: int) -> None:
        """From now on the machine works for the run."""
        self._group = group

    def take(self, transferred: Transferred) -> None:
        """What the worker that runs has sent and received since it started."""
        self._running = transferred

    def worker_ended(self) -> None:
        """The next one counts from zero."""
        ended, last = self._ended, self._running
        self._ended = Transferred(ended.sent_bytes + last.sent_bytes, ended.received_bytes + last.received_bytes)
        self._running, self._group = NOTHING, None

    def on(self, readings: Readings) -> Readings:
        """The machine's readings with what is this stay's; it looks at the worker's memory if that is limited."""
        self._count(readings.energy)
        watched = self._group if self._limits.memory_bytes is not None else None
        return replace(
            readings,
            sent_bytes=self._ended.sent_bytes + self._running.sent_bytes,
            received_bytes=self._ended.received_bytes + self._running.received_bytes + self.fetching.total_bytes,
            memory_bytes=group_memory(watched) if watched is not None else 0,
            energy=self._energy,
        )

    def _count(self, meter: Energy) -> None:
        before, self._meter = self._meter, meter
        working = self._group is not None
        self._energy = Energy(
            _added(self._energy.processor_wh, before.processor_wh, meter.processor_wh, working),
            _added(self._energy.gpu_wh, before.gpu_wh, meter.gpu_wh, working),
        )


def used_of(readings: Readings, *, at_end: bool = False) -> Used:
    """What of the readings is shown."""
    energy = readings.energy
    return Used(readings.sent_bytes, readings.received_bytes, energy.processor_wh, energy.gpu_wh, at_end=at_end)


def _added(counted: float | None, before: float | None, now: float | None, working: bool) -> float | None:
    """What counts after the meter went from `before` to `now`; None as long as the meter says nothing."""
    if now is None:
        return counted
    used = now - before if working and before is not None else 0.0
    return (counted or 0.0) + used
