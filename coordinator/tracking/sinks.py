"""The sinks: TensorBoard's event files, and one run of a project in Weights & Biases or Trackio, resumed by id or name.

A tracker's own steps are our rows, with the global step beside them. Each library is imported when its sink is opened:
most runs have none, and Trackio reads its settings then.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from coordinator.run.sink_settings import TrackioSettings, WandbSettings
from coordinator.tracking.points import Point

WRITTEN_WITHIN_S = 60.0
POLL_S = 0.1
OPENING_S = 120.0
GLOBAL_STEP = "global_step"
EVENT_FILES = "events.out.tfevents.*"


class TensorBoardSink:
    """One more event file in the folder, by the writer that TensorBoard's SummaryWriters stand on."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.held: int | None = rows_in(folder)
        self._writer = EventFileWriter(str(folder))

    def write(self, row: int, point: Point) -> None:  # noqa: ARG002  # events have no numbers
        """Write one event with all the point's values and its own time."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._writer.add_event(Event(wall_time=point.at, step=point.step, summary=Summary(value=values)))

    def rewind(self, step: int) -> None:
        """TensorBoard leaves out what was written of later steps before."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def flush(self) -> None:
        """Write the waiting events to the disk."""
        self._writer.flush()

    def close(self) -> None:
        """The file is complete."""
        self._writer.close()


def rows_in(folder: Path) -> int:
    """Count the points in the folder's event files, without a torn last one."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    files = sorted(folder.glob(EVENT_FILES)) if folder.is_dir() else []
    return sum(event.HasField("summary") for file in files for event in LegacyEventFileLoader(str(file)).Load())


class WandbSink:
    """An open run of Weights & Biases, drawn over `GLOBAL_STEP`."""

    def __init__(self, settings: WandbSettings, run: str, run_id: str, folder: Path, api_key: str | None) -> None:
        if api_key is not None:
            os.environ["WANDB_API_KEY"] = api_key  # of this process; `wandb.login` would write it to the home folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # else it writes to the home folder
            os.environ.setdefault(name, str(folder))
        import wandb

        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=run,
            id=run_id,
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
        self.held: int | None = int(self._run.step) if settings.mode == "online" else None

    def write(self, row: int, point: Point) -> None:
        """A row that is there already is not written again."""
        self._run.log({GLOBAL_STEP: point.step, "completed_at": point.at, **point.values}, step=row, commit=True)

    def rewind(self, step: int) -> None:
        """Do nothing: rows go on, and `train/era` tells them apart."""

    def flush(self) -> None:
        """Its own process has taken what was logged."""

    def close(self) -> None:
        """Wait until all is sent, or on disk."""
        self._run.finish()


class TrackioSink:
    """An open run of Trackio."""

    def __init__(self, settings: TrackioSettings, run: str, folder: Path, token: str | None) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)  # read when it is imported
        if token is not None:
            os.environ["TRACKIO_WRITE_TOKEN" if settings.server_url else "HF_TOKEN"] = token
        import trackio

        self._project, self._name = settings.project, run
        self._is_local = not (settings.server_url or settings.space_id)
        self.held: int | None = self._rows() if self._is_local else None
        self._last = -1
        self._run = trackio.init(
            project=settings.project,
            name=run,
            server_url=settings.server_url,
            space_id=settings.space_id,
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, row: int, point: Point) -> None:
        """Queued; a thread of trackio's writes it."""
        self._run.log({GLOBAL_STEP: point.step, "completed_at": point.at, **point.values}, step=row)
        self._last = row

    def rewind(self, step: int) -> None:
        """Do nothing: rows go on, and `train/era` tells them apart."""

    def flush(self) -> None:
        """Wait until its database holds the last row; raises `TimeoutError`. A server has its own queue on disk."""
        deadline = time.monotonic() + WRITTEN_WITHIN_S
        while self._is_local and self._rows() <= self._last:
            if time.monotonic() > deadline:
                raise TimeoutError(f"trackio has not written row {self._last} within {WRITTEN_WITHIN_S:g} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Wait until all is written, or sent."""
        self._run.finish()  # type: ignore[no-untyped-call]

    def _rows(self) -> int:
        from trackio.sqlite_storage import SQLiteStorage

        last = SQLiteStorage.get_max_step_for_run(self._project, self._name)
        return 0 if last is None else int(last) + 1
