"""The process that writes metrics to the sinks.

The process reads the run from the database. Each sink has its own thread, so a hanging sink neither
delays other sinks nor prevents the process from exiting. A sink's new position is stored before the
points are written: if the process is killed in between, these points are lost, but no point is
written twice. Failed writes are retried; after a failed flush, the whole batch is written again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from auth.errors import StorageError
from auth.files import write_private
from coordinator.ledger.reading import SETTLED_S
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from coordinator.tracking.points import SinkPosition, in_current_era, next_points
from coordinator.tracking.sinks import SINKS, Sink
from peer.runtime.processes import stop_at_sigterm

logger = logging.getLogger(__name__)
LAST_S = 8.0  # seconds for writing the remaining points after SIGTERM
POLL_S = 2.0
LONGEST_PAUSE_S = 300.0


@dataclass
class SinkWriter:
    """A writer of a run's points to one sink, running in a separate thread."""

    name: str
    open: Callable[[], Sink]
    book: Path  # file that stores the sink's position
    database: Database
    clock: Callable[[], float] = time.time
    failures: int = 0  # number of consecutive failures

    def run(self, stop: threading.Event) -> None:
        """Write new points until `stop` is set, then the remaining points; retry after errors."""
        while True:
            try:
                self.write_until(stop)
                return
            except Exception as error:  # noqa: BLE001 - fault boundary of third-party code and servers
                self.failures += 1
                if self.failures == 1:
                    logger.error("cannot write to %s, and will try again: %r", self.name, error)
            if stop.wait(pause_s(self.failures)):
                return

    def write_until(self, stop: threading.Event) -> None:
        """Open the sink, write points until `stop` is set, and close it; raises its errors."""
        position, sink = self.position(), self.open()
        try:
            while True:
                before, is_last = position, stop.is_set()
                position = self.write_some(sink, position, self.clock() - (0.0 if is_last else SETTLED_S))
                if self.failures:
                    logger.info("writes to %s succeed again", self.name)
                    self.failures = 0
                if position == before:
                    if is_last:
                        return
                    stop.wait(POLL_S)
        finally:
            sink.close()

    def write_some(self, sink: Sink, position: SinkPosition, settled_before: float) -> SinkPosition:
        """Write the points after `position`, if any; return the new position."""
        reached = in_current_era(self.database, position)
        if reached.step < position.step:
            sink.rewind(reached.step)
        end, points = reached, next_points(self.database, reached, settled_before)
        for point in points:
            end = end.after(point)
        if end == position:
            return position
        self._settle(end)
        try:
            for point in points:
                sink.write(reached.rows, point)
                reached = reached.after(point)
            sink.flush()
        except Exception:
            self._settle(position if reached == end else reached)  # after a failed flush, repeat all points
            raise
        return end

    def position(self) -> SinkPosition:
        """Read the sink's stored position; raises `StorageError` if the file cannot be read."""
        try:
            return SinkPosition.model_validate_json(self.book.read_bytes())
        except FileNotFoundError:
            return SinkPosition()
        except (OSError, ValidationError) as error:
            raise StorageError(
                f"{self.book} cannot be read, or is of another version of manyhands: remove it and what this sink "
                "holds of the run, to have that written anew."
            ) from error

    def _settle(self, position: SinkPosition) -> None:
        write_private(self.book, position.model_dump_json().encode())


def pause_s(failures: int) -> float:
    """Return the delay in seconds after this number of consecutive failures."""
    return min(LONGEST_PAUSE_S, POLL_S * 2.0 ** min(failures, 10))


def writers(directory: RunDirectory, database: Database) -> list[SinkWriter]:
    """Return a writer for each configured sink."""
    sinks, books = directory.settings.sinks, directory.sinks_dir
    return [
        SinkWriter(name, partial(SINKS[name], getattr(sinks, name), directory), books / f"{name}.json", database)
        for name in sinks.names
    ]


def run_sinks(run_dir: Path) -> None:
    """Write to all sinks until SIGTERM; exit at most `LAST_S` later."""
    directory = RunDirectory.open(run_dir)
    directory.sinks_dir.mkdir(mode=0o700, exist_ok=True)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for good, because libraries print greetings
    stop = stop_at_sigterm()
    database = Database(open_engine(directory.database_url))
    running = [
        (each.name, threading.Thread(target=each.run, args=(stop,), name=each.name, daemon=True))
        for each in writers(directory, database)
    ]
    for _, thread in running:
        thread.start()
    stop.wait()
    deadline = time.monotonic() + LAST_S
    for name, thread in running:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            logger.warning("%s has not accepted the remaining points within %g s; some may be missing", name, LAST_S)
    logging.shutdown()
    os._exit(0)  # a normal exit would wait for the libraries' threads
