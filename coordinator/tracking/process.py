"""The process that writes to the sinks, beside service, keeper and validator.

It learns about the run from the database only. Each sink has its own thread, so a sink that hangs
delays no other, and the process ends without waiting for it. A failed write is retried later, and
nothing waits for it. A sink's new position is stored on disk before its points are written: if the
process is killed meanwhile, those few points may be missing, and none is written twice. If a sink
cannot flush, the same points are written to it again.
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
LAST_S = 8.0  # to write the remaining points after SIGTERM
POLL_S = 2.0
LONGEST_PAUSE_S = 300.0


@dataclass
class SinkWriter:
    """Writes a run's points to one sink; `run` is the loop of its thread."""

    name: str
    open: Callable[[], Sink]
    book: Path  # the sink's position
    database: Database
    clock: Callable[[], float] = time.time
    failures: int = 0  # in a row

    def run(self, stop: threading.Event) -> None:
        """Write new points until `stop` is set, and then the remaining ones."""
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
        """Open the sink, continue where it ends, close it after `stop`; raises its errors."""
        position, sink = self.position(), self.open()
        try:
            while True:
                before, is_last = position, stop.is_set()
                position = self.write_some(sink, position, self.clock() - (0.0 if is_last else SETTLED_S))
                if self.failures:
                    logger.info("%s takes what is written again", self.name)
                    self.failures = 0
                if position == before:
                    if is_last:
                        return
                    stop.wait(POLL_S)
        finally:
            sink.close()

    def write_some(self, sink: Sink, position: SinkPosition, settled_before: float) -> SinkPosition:
        """Write the next points, if there are any; returns the position reached."""
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
            self._settle(position if reached == end else reached)  # after a failed flush: all of them again
            raise
        return end

    def position(self) -> SinkPosition:
        """Read the position to continue from; raises `StorageError`."""
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
    """Return the seconds to wait after so many failures in a row."""
    return min(LONGEST_PAUSE_S, POLL_S * 2.0 ** min(failures, 10))


def writers(directory: RunDirectory, database: Database) -> list[SinkWriter]:
    """Make a writer for each sink of the settings."""
    sinks, books = directory.settings.sinks, directory.sinks_dir
    return [
        SinkWriter(name, partial(SINKS[name], getattr(sinks, name), directory), books / f"{name}.json", database)
        for name in sinks.names
    ]


def run_sinks(run_dir: Path) -> None:
    """Main function of the process; ends on SIGTERM, at the latest `LAST_S` later."""
    directory = RunDirectory.open(run_dir)
    directory.sinks_dir.mkdir(mode=0o700, exist_ok=True)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for good: libraries print greetings
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
            logger.warning("%s has not taken what was left within %g s; some of it may be missing there", name, LAST_S)
    logging.shutdown()
    os._exit(0)  # a normal exit would wait for threads of the sinks' libraries
