"""The process of the sinks, beside service, keeper and validator.

The process knows the run by the database alone. Each sink has a thread of its own, so that one which hangs holds up no
other; the process ends without those that hang. A failed write is tried again later, and nothing waits for it. The next
points to write are recorded on disk before they are written: if the process is killed, the next one knows which points
may have been written, and the sink, if it can be asked, how many were.

`Sink` is the protocol that the classes of `coordinator.tracking.sinks` implement.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from auth.errors import StorageError
from auth.files import write_private
from coordinator.ledger.reading import SETTLED_S
from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import read_secret
from coordinator.run.sink_settings import TensorBoardSettings, TrackioSettings, WandbSettings
from coordinator.store.engine import Database, open_engine
from coordinator.tracking.points import Point, SinkPosition, in_current_era, next_points
from coordinator.tracking.sinks import TensorBoardSink, TrackioSink, WandbSink
from peer.runtime.processes import stop_at_sigterm

logger = logging.getLogger(__name__)
LAST_S = 8.0  # for what is left, once told to stop
POLL_S = 2.0
LONGEST_PAUSE_S = 300.0


class Logbook:
    """The position of a sink on disk; raises `StorageError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, position: SinkPosition, ahead: Sequence[SinkPosition]) -> None:
        """Record that the rows up to the positions `ahead`, one after the other, are about to be written."""
        text = json.dumps({"position": asdict(position), "ahead": [asdict(each) for each in ahead]})
        write_private(self._path, text.encode())

    def settle(self, position: SinkPosition) -> None:
        """All up to here is written."""
        self.begin(position, ())

    def recover(self, held: int | None) -> SinkPosition:
        """Return the position to go on from, if the sink holds so many rows; None: unknown, so no row is written twice.

        A sink that holds nothing (its folder was removed) is written anew.
        """
        if held == 0:
            return SinkPosition()
        position, ahead = self._read()
        if held is None:
            return ahead[-1] if ahead else position
        return max([each for each in ahead if each.rows <= held], key=lambda each: each.rows, default=position)

    def _read(self) -> tuple[SinkPosition, list[SinkPosition]]:
        try:
            found = json.loads(self._path.read_bytes())
            return SinkPosition(**found["position"]), [SinkPosition(**each) for each in found["ahead"]]
        except FileNotFoundError:
            return SinkPosition(), []
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StorageError(f"Cannot read {self._path}: remove it to have the sink written anew.") from error


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


def open_tensorboard(directory: RunDirectory, settings: TensorBoardSettings) -> Sink:
    """Event files in the run's directory."""
    return TensorBoardSink(directory.path / settings.directory)


def open_wandb(directory: RunDirectory, settings: WandbSettings) -> Sink:
    """A run whose id follows from this run's certificate, so that it is found again."""
    name, link = directory.config.run.name, directory.join_link
    key = _secret(directory, settings.api_key_file, "sinks.wandb.api_key_file")
    return WandbSink(settings, name, f"{name}-{link.fingerprint[:12]}", directory.sinks_dir / "wandb", key)


def open_trackio(directory: RunDirectory, settings: TrackioSettings) -> Sink:
    """A run of this run's name."""
    token = _secret(directory, settings.token_file, "sinks.trackio.token_file")
    return TrackioSink(settings, directory.config.run.name, directory.sinks_dir / "trackio", token)


def _secret(directory: RunDirectory, name: str | None, setting: str) -> str | None:
    return None if name is None else read_secret(directory.path / name, setting)


def writers(directory: RunDirectory, database: Database) -> list[SinkWriter]:
    """Make a writer for each sink of the settings."""
    sinks, opening = directory.settings.sinks, dict[str, Callable[[], Sink]]()
    if sinks.tensorboard is not None:
        opening["tensorboard"] = partial(open_tensorboard, directory, sinks.tensorboard)
    if sinks.wandb is not None:
        opening["wandb"] = partial(open_wandb, directory, sinks.wandb)
    if sinks.trackio is not None:
        opening["trackio"] = partial(open_trackio, directory, sinks.trackio)
    books = directory.sinks_dir
    return [
        SinkWriter(name, opens, Logbook(books / f"{name}.json"), database, time.time) for name, opens in opening.items()
    ]


def run_sinks(run_dir: Path) -> None:
    """Main function of the process; ends on SIGTERM, at the latest `LAST_S` later."""
    directory = RunDirectory.open(run_dir)
    directory.sinks_dir.mkdir(mode=0o700, exist_ok=True)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for good: what libraries greet with is no log
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
            logger.warning("%s has not taken what was left within %g s; it gets it next time", name, LAST_S)
    logging.shutdown()
    os._exit(0)  # threads of the sinks' libraries would be waited for
