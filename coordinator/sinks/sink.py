"""What a sink can do; see `coordinator.sinks.tensorboard_sink` and its neighbours."""

from __future__ import annotations

from typing import Protocol

from coordinator.sinks.points import Point


class Sink(Protocol):
    """An open sink, used by one thread; whatever it raises has it opened anew later."""

    @property
    def held(self) -> int | None:
        """How many rows it holds from before it was opened; None if it cannot tell."""

    def write(self, row: int, point: Point) -> None:
        """Take a point; rows are numbered from 0."""

    def rewind(self, step: int) -> None:
        """The run has returned to the checkpoint of this step: what follows takes the place of what was there."""

    def flush(self) -> None:
        """Return when what was taken would outlive this process."""

    def close(self) -> None:
        """Say that no more comes."""
