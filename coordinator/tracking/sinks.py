"""The sinks: TensorBoard event files, and runs of W&B (resumed by id) or Trackio (by name).

A tracker's own step is the row number; the global step is one of the row's values. A library is
imported when its sink is opened: most runs have no sinks, and Trackio reads its settings at import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import read_secret
from coordinator.run.sink_settings import TensorBoardSettings, TrackioSettings, WandbSettings
from coordinator.tracking.points import Point

OPENING_S = 120.0
GLOBAL_STEP = "global_step"


class Sink:
    """An open run in a tracking service, used by one thread and reopened after an error."""

    _run: Any

    def write(self, row: int, point: Point) -> None:
        """Log a point as row number `row`, counted from 0."""
        self._run.log(_values(point), step=row)

    def rewind(self, step: int) -> None:
        """Handle a rewind to `step`; by default, rows are kept and distinguished by `train/era`."""

    def flush(self) -> None:
        """Make logged points visible to readers; by default, trackers flush on their own."""

    def close(self) -> None:
        """Block until all points are sent or on disk."""
        self._run.finish()


def _values(point: Point) -> dict[str, float]:
    return {GLOBAL_STEP: point.step, "completed_at": point.at, **point.values}


class TensorBoardSink(Sink):
    """A new TensorBoard event file, written with the class that SummaryWriter uses."""

    def __init__(self, settings: TensorBoardSettings, directory: RunDirectory) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(directory.path / settings.directory))

    def write(self, row: int, point: Point) -> None:  # noqa: ARG002  # events have no row numbers
        """Write an event with the point's values and time."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._writer.add_event(Event(wall_time=point.at, step=point.step, summary=Summary(value=values)))

    def rewind(self, step: int) -> None:
        """Make TensorBoard discard the events of steps after `step`."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def flush(self) -> None:
        """Write buffered events to disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink(Sink):
    """A W&B run plotted over `GLOBAL_STEP`; its id is derived from the run's certificate."""

    def __init__(self, settings: WandbSettings, directory: RunDirectory) -> None:
        if settings.api_key_file is not None:  # `wandb.login` would write the key to the home folder
            os.environ["WANDB_API_KEY"] = read_secret(
                directory.path / settings.api_key_file, "sinks.wandb.api_key_file"
            )
        folder, name = directory.sinks_dir / "wandb", directory.config.run.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for variable in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # otherwise, wandb would use the home folder
            os.environ.setdefault(variable, str(folder))
        import wandb

        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=name,
            id=f"{name}-{directory.join_link.fingerprint[:12]}",
            dir=str(folder),
            mode=settings.mode,
            resume="allow" if settings.mode == "online" else None,
            save_code=False,
            settings=wandb.Settings(
                base_url=settings.base_url or wandb.Settings().base_url,
                console="off",
                disable_git=True,
                init_timeout=OPENING_S,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        self._run.define_metric("*", step_metric=GLOBAL_STEP)

    def write(self, row: int, point: Point) -> None:
        """Log a point; without `commit`, wandb would buffer the point until the next call."""
        self._run.log(_values(point), step=row, commit=True)


class TrackioSink(Sink):
    """A Trackio run with the name of this run."""

    def __init__(self, settings: TrackioSettings, directory: RunDirectory) -> None:
        os.environ["TRACKIO_DIR"] = str(directory.sinks_dir / "trackio")  # Trackio reads these variables at import
        if settings.token_file is not None:
            token = read_secret(directory.path / settings.token_file, "sinks.trackio.token_file")
            os.environ["TRACKIO_WRITE_TOKEN" if settings.server_url else "HF_TOKEN"] = token
        import trackio

        self._run = trackio.init(
            project=settings.project,
            name=directory.config.run.name,
            server_url=settings.server_url,
            space_id=settings.space_id,
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )


SINKS: Mapping[str, Callable[[Any, RunDirectory], Sink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "trackio": TrackioSink,
}
