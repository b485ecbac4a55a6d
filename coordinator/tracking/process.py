"""The process of the sinks, beside service, keeper and validator.

The process knows the run by the database alone. Each sink has a thread of its own, so that one which hangs holds up no
other; the process ends without those that hang.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import read_secret
from coordinator.run.sink_settings import TensorBoardSettings, TrackioSettings, WandbSettings
from coordinator.store.engine import Database, open_engine
from coordinator.tracking.logbook import Logbook
from coordinator.tracking.writer import Sink, SinkWriter

logger = logging.getLogger(__name__)
LAST_S = 8.0  # for what is left, once told to stop


def open_tensorboard(directory: RunDirectory, settings: TensorBoardSettings) -> Sink:
    """Event files in the run's directory."""
    from coordinator.tracking.tensorboard import TensorBoardSink

    return TensorBoardSink(directory.path / settings.directory)


def open_wandb(directory: RunDirectory, settings: WandbSettings) -> Sink:
    """A run whose id follows from this run's certificate, so that it is found again."""
    from coordinator.tracking.wandb import WandbSink

    name, link = directory.config.run.name, directory.join_link
    key = _secret(directory, settings.api_key_file, "sinks.wandb.api_key_file")
    return WandbSink(settings, name, f"{name}-{link.fingerprint[:12]}", directory.sinks_dir / "wandb", key)


def open_trackio(directory: RunDirectory, settings: TrackioSettings) -> Sink:
    """A run of this run's name."""
    from coordinator.tracking.trackio import TrackioSink

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
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
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
