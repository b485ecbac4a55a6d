"""Network connections in virtual time: transfers as fluid flows with fair sharing.

A transfer moves bytes over several connections at once, in fixed proportions. It models an
averaging round, in which all peers send their parts at the same pace. Each direction is shared
equally by its transfers. Capacity that a transfer limited by another connection cannot use goes to
the other transfers (max-min fairness: Bertsekas and Gallager, "Data Networks", section 6.5.2).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from peer.network.traffic import BOTH_WAYS, ON_THE_LINE

DONE = 1e-9  # fraction of a transfer treated as rounding error
LEAST_S = 1e-6  # shortest duration of a transfer; a shorter one might not advance the clock
Direction = tuple[str, str]  # peer's name; "up" or "down"


@dataclass(frozen=True)
class Line:
    """A peer's connection: bytes per second each way, and latency to a peer with equal latency."""

    up: float
    down: float
    latency_s: float

    @property
    def slower_rate(self) -> float:
        """Bytes per second of the slower direction."""
        return min(self.up, self.down)


@dataclass(eq=False)
class Transfer:
    """Bytes that are transferred together; `on_done` is called when all have arrived."""

    bytes_by: Mapping[Direction, float]
    load_by: Mapping[Direction, float]  # capacity used in bytes, which may exceed the bytes sent
    on_done: Callable[[], object]
    left: float = 1.0  # remaining fraction of all bytes
    speed: float = 0.0  # fraction transferred per second

    @property
    def is_done(self) -> bool:
        """Whether all bytes have arrived."""
        return self.left <= DONE


class Lines:
    """The connections of all peers."""

    def __init__(self, now: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]) -> None:
        """Set the clock (in seconds) and the function that schedules a call after some seconds."""
        self._now, self._call_later = now, call_later
        self._lines: dict[str, Line] = {}
        self._under_way: dict[Transfer, None] = {}  # in order of their start
        self._moved: dict[Direction, float] = {}
        self._changed_at = now()
        self._version = 0

    def connect(self, name: str, line: Line) -> None:
        """Set or replace a peer's connection."""
        self._advance()
        self._lines[name] = line
        self._share()

    def rate(self, name: str) -> float:
        """Return the bytes per second of the slower direction of a peer's connection."""
        return self._lines[name].slower_rate

    def latency_s(self, one: str, another: str) -> float:
        """Return the latency in seconds from one peer to another."""
        return (self._lines[one].latency_s + self._lines[another].latency_s) / 2

    def exchange_s(self, names: Iterable[str]) -> float:
        """Return the round-trip time in seconds between the two most distant of these peers."""
        return sum(heapq.nlargest(2, (self._lines[name].latency_s for name in names)))

    def moved(self, name: str, way: str) -> float:
        """Return the bytes transferred over a peer's connection in this direction."""
        self._advance()
        return self._moved.get((name, way), 0.0)

    def send(self, bytes_by: Mapping[Direction, float], on_done: Callable[[], object]) -> Transfer:
        """Start a transfer; `on_done` is called when all bytes have arrived."""
        self._advance()
        on_the_line = {way: ON_THE_LINE * size for way, size in bytes_by.items() if size > 0}
        transfer = Transfer(on_the_line, self._loads(on_the_line), on_done)
        if transfer.bytes_by:
            self._under_way[transfer] = None
            self._share()
        else:
            on_done()
        return transfer

    def passed(self, name: str, sent: float, received: float) -> None:
        """Count bytes sent outside of transfers, which are too few to slow down the transfers."""
        for way, size in ((name, "up"), sent), ((name, "down"), received):
            self._moved[way] = self._moved.get(way, 0.0) + size

    def _loads(self, bytes_by: Mapping[Direction, float]) -> dict[Direction, float]:
        """Return the capacity a transfer uses: more than its bytes if both directions are busy."""
        busy_s = {way: size / rate for way, size in bytes_by.items() if (rate := self._rate(*way)) > 0}
        loads = {}
        for (name, way), size in bytes_by.items():
            own_s = busy_s.get((name, way), 0.0)
            other_s = busy_s.get((name, "down" if way == "up" else "up"), 0.0)
            loads[name, way] = size * (1 + BOTH_WAYS * min(1.0, other_s / own_s if own_s else 0.0))
        return loads

    def stop(self, transfer: Transfer) -> None:
        """Stop an active transfer; `on_done` is called only if the transfer ends at this moment."""
        if transfer in self._under_way:
            self._advance()
            self._under_way.pop(transfer, None)
            self._share()

    def _advance(self) -> None:
        elapsed, self._changed_at = self._now() - self._changed_at, self._now()
        if elapsed <= 0:
            return
        for transfer in self._under_way:
            part = min(transfer.left, transfer.speed * elapsed)
            transfer.left -= part
            for way, size in transfer.bytes_by.items():
                self._moved[way] = self._moved.get(way, 0.0) + part * size
        arrived = [transfer for transfer in self._under_way if transfer.is_done]
        for transfer in arrived:
            del self._under_way[transfer]
        for transfer in arrived:
            transfer.on_done()  # may start the next transfer

    def _share(self) -> None:
        """Divide the capacity among the active transfers, and schedule the first completion.

        A direction that limits all of its transfers is divided equally among them first.
        """
        waiting = list(self._under_way)
        free = {way: self._rate(*way) for transfer in waiting for way in transfer.load_by}
        while waiting:
            users = Counter(way for transfer in waiting for way in transfer.load_by)
            fair = {way: max(0.0, free[way]) / users[way] for way in users}
            bounds = {each: min(each.load_by, key=lambda way: fair[way] / each.load_by[way]) for each in waiting}
            whole = {way for way in users if all(bounds[each] == way for each in waiting if way in each.load_by)}
            slowest = min(waiting, key=lambda each: fair[bounds[each]] / each.load_by[bounds[each]])
            for transfer in [each for each in waiting if bounds[each] in whole] or [slowest]:
                waiting.remove(transfer)
                transfer.speed = fair[bounds[transfer]] / transfer.load_by[bounds[transfer]]
                for way, size in transfer.load_by.items():
                    free[way] -= transfer.speed * size
        next_s = min((each.left / each.speed for each in self._under_way if each.speed > 0), default=math.inf)
        self._version += 1
        if next_s < math.inf:
            version = self._version
            self._call_later(max(next_s, LEAST_S), lambda: self._wake(version))

    def _wake(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._share()

    def _rate(self, name: str, way: str) -> float:
        return self._lines[name].up if way == "up" else self._lines[name].down
