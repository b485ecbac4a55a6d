"""The writer of one sink, in a thread of its own: a failed write is tried again later, and nothing waits for it.

`Sink` is the protocol that `coordinator.tracking.tensorboard`, `coordinator.tracking.trackio` and
`coordinator.tracking.wandb` implement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from coordinator.ledger.reading import SETTLED_S
from coordinator.store.engine import Database
from coordinator.tracking.logbook import Logbook
from coordinator.tracking.points import Point, SinkPosition, in_current_era, next_points

logger = logging.getLogger(__name__)

POLL_S = 2.0
LONGEST_PAUSE_S = 300.0


@dataclass
class SinkWriter:
    """`run` is the thread's loop."""

    name: str
    open: Callable[[], Sink]
    logbook: Logbook
    database: Database
    clock: Callable[[], float]
    failures: int = 0  # in a row

    def run(self, stop: threading.Event) -> None:
        """Write what comes until told to stop, and then what is left."""
        while True:
            try:
                self.write_until(stop)
                return
            except Exception as error:  # noqa: BLE001 - a fault boundary: other people's code and servers
                self.failures += 1
                if self.failures == 1:
                    logger.error("cannot write to %s, and will try again: %r", self.name, error)
            if stop.wait(pause_s(self.failures)):
                return

    def write_until(self, stop: threading.Event) -> None:
        """Open the sink, go on where it ends, and close it when told to stop; raises whatever it raises."""
        sink = self.open()
        try:
            position = self.logbook.recover(sink.held)
            while not stop.is_set():
                before = position
                position = self.write_some(sink, position, self.clock() - SETTLED_S)
                self._has_written()
                if position == before:
                    stop.wait(POLL_S)
            self.write_some(sink, position, self.clock())
        finally:
            sink.close()

    def _has_written(self) -> None:
        if self.failures:
            logger.info("%s takes what is written again", self.name)
            self.failures = 0

    def write_some(self, sink: Sink, position: SinkPosition, settled_before: float) -> SinkPosition:
        """Write the next points, if there are any; returns how far that is."""
        current = in_current_era(self.database, position)
        if current.step < position.step:
            sink.rewind(current.step)
        if current != position:
            self.logbook.settle(current)
        points = next_points(self.database, current, settled_before)
        if not points:
            return current
        ahead = [current.after(points[0])]
        for point in points[1:]:
            ahead.append(ahead[-1].after(point))
        self.logbook.begin(current, ahead)
        for reached, point in zip(ahead, points, strict=True):
            sink.write(reached.rows - 1, point)
        sink.flush()
        self.logbook.settle(ahead[-1])
        return ahead[-1]


class Sink(Protocol):
    """An open sink, used by one thread; whatever it raises has it opened anew later."""

    @property
    def held(self) -> int | None:
        """The number of rows that it held before it was opened; None if it cannot tell."""

    def write(self, row: int, point: Point) -> None:
        """Take a point; rows are numbered from 0."""

    def rewind(self, step: int) -> None:
        """The run has returned to the checkpoint of this step: what follows takes the place of what was there."""

    def flush(self) -> None:
        """Return when what was taken would outlive this process."""

    def close(self) -> None:
        """Say that no more comes."""


def pause_s(failures: int) -> float:
    """The wait after so many failures in a row."""
    return min(LONGEST_PAUSE_S, POLL_S * 2.0 ** min(failures, 10))
