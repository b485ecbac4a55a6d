"""The checkpoint to return to after an alarm about the model.

It is derived anew each time, so it is always a checkpoint that still exists. While the alarm is
active, the keeper does not delete it. The keeper's log, `coordinator status`, the dashboard and the
administrators' page show it.
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
    """The best checkpoint to return to, if any is sound."""

    step: int | None  # None: no sound checkpoint; the run can only start over
    is_before: bool  # True if it precedes the alarm; otherwise it is the oldest sound one

    def advice(self, directory: Path) -> str:
        """Return a sentence naming the checkpoint and the command to return to it."""
        if self.step is None:
            return "No sound checkpoint is kept: only the run's beginning is left."
        command = f"manyhands coordinator rewind {shlex.quote(str(directory))} {self.step}"
        if self.is_before:
            return f"Return to step {self.step}: {command}"
        return f"No sound checkpoint from before is kept; the oldest one is of step {self.step}: {command}"


def return_point(began: int, kept: Iterable[CheckpointRow], evaluated: Iterable[ValidationRow]) -> ReturnPoint:
    """Return the newest sound checkpoint before step `began`; if there is none, the oldest sound one.

    A checkpoint is not sound if it is withheld or its validation loss is not finite.
    """
    broken = {row.step for row in evaluated if row.loss is None}
    sound = [row.step for row in kept if not row.withheld and row.step not in broken]
    before = max((step for step in sound if step < began), default=None)
    return ReturnPoint(min(sound, default=None) if before is None else before, before is not None)


def read_return_point(database: Database, began: int) -> ReturnPoint:
    """Return the checkpoint to return to after an alarm that began at this step."""
    return return_point(began, checkpoints(database), validations(database))


def steps_to_spare(database: Database) -> set[int]:
    """Return the steps of checkpoints that active alarms need, which must not be deleted."""
    points = [read_return_point(database, row.step) for row in raised_alarms(database) if row.kind in MODEL_KINDS]
    return {point.step for point in points if point.step is not None}
