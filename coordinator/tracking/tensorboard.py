"""TensorBoard's event files, by the writer that its SummaryWriters stand on; read back to know what was written."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from coordinator.tracking.points import Point

PATTERN = "events.out.tfevents.*"


class TensorBoardSink:
    """One more event file in the folder."""

    def __init__(self, folder: Path) -> None:
        self.held: int | None = rows_in(folder)
        self._writer = EventFileWriter(str(folder))

    def write(self, row: int, point: Point) -> None:  # noqa: ARG002  # events have no numbers
        """Write one event with all the point's values and its own time."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._writer.add_event(Event(wall_time=point.at, step=point.step, summary=Summary(value=values)))

    def rewind(self, step: int) -> None:
        """TensorBoard leaves out what was written of later steps before."""
        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def flush(self) -> None:
        """Write the waiting events to the disk."""
        self._writer.flush()

    def close(self) -> None:
        """The file is complete."""
        self._writer.close()


def rows_in(folder: Path) -> int:
    """Count the points in the folder's event files, without a torn last one."""
    files = sorted(folder.glob(PATTERN)) if folder.is_dir() else []
    return sum(event.HasField("summary") for file in files for event in LegacyEventFileLoader(str(file)).Load())
