"""Weights & Biases: one run of a project, resumed by its id; its own steps are our rows, drawn over `global_step`."""

from __future__ import annotations

import os
from pathlib import Path

import wandb

from coordinator.run.sink_settings import WandbSettings
from coordinator.tracking.points import Point

OPENING_S = 120.0
GLOBAL_STEP = "global_step"


class WandbSink:
    """An open run there."""

    def __init__(self, settings: WandbSettings, run: str, run_id: str, folder: Path, api_key: str | None) -> None:
        if api_key is not None:
            os.environ["WANDB_API_KEY"] = api_key  # of this process; `wandb.login` would write it to the home folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # else it writes to the home folder
            os.environ.setdefault(name, str(folder))
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
