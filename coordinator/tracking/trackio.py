"""trackio: one run of a project, resumed by its name; its steps are our rows, with the global step beside them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from coordinator.run.sink_settings import TrackioSettings
from coordinator.tracking.points import Point

WRITTEN_WITHIN_S = 60.0
POLL_S = 0.1


class TrackioSink:
    """An open run there."""

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
        self._run.log({"global_step": point.step, "completed_at": point.at, **point.values}, step=row)
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
