"""The checkpoint to return to after an alarm about the model.

The return point is always computed from the current checkpoints. While the alarm is active, the
keeper does not delete this checkpoint. The keeper's log, `coordinator status`, the dashboard and
the administrators' page show the return point.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coordinator.checkpoints.validations import ValidationRow, validations
from coordinator.ledger.recorded_checkpoints import CheckpointRow, checkpoints
from coordinator.statistics.alarms import MODEL_KINDS, raised_alarms
from coordinator.store.engine import Database


@dataclass(frozen=True)
class ReturnPoint:
    """The best checkpoint to return to, if a sound checkpoint exists."""

    step: int | None  # the checkpoint's step; None if the run can only start over
    is_before: bool  # True if the checkpoint precedes the alarm, False for the oldest sound one

    def advice(self, directory: Path) -> str:
        """Return a sentence naming the checkpoint and the command to return to it."""
        if self.step is None:
            return "There is no sound checkpoint: the run can only start over."
        command = f"manyhands coordinator rewind {shlex.quote(str(directory))} {self.step}"
        if self.is_before:
            return f"Return to step {self.step}: {command}"
        return f"No sound checkpoint precedes the alarm; the oldest sound one is of step {self.step}: {command}"


def return_point(began: int, kept: Iterable[CheckpointRow], evaluated: Iterable[ValidationRow]) -> ReturnPoint:
    """Return the newest sound checkpoint before step `began`, or else the oldest sound checkpoint.

    A checkpoint is not sound if it is withheld or its validation loss is not finite.
    """
    broken = {row.step for row in evaluated if row.loss is None}
    sound = [row.step for row in kept if not row.withheld and row.step not in broken]
    before = max((step for step in sound if step < began), default=None)
    return ReturnPoint(min(sound, default=None) if before is None else before, before is not None)


def read_return_point(database: Database, began: int) -> ReturnPoint:
    """Return the checkpoint to return to after an alarm that began at step `began`."""
    return return_point(began, checkpoints(database), validations(database))


def steps_to_spare(database: Database) -> set[int]:
    """Return the steps of the checkpoints to keep as return points for active alarms."""
    points = [read_return_point(database, row.step) for row in raised_alarms(database) if row.kind in MODEL_KINDS]
    return {point.step for point in points if point.step is not None}
