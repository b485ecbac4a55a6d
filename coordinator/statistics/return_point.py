"""The checkpoint to return to after an alarm about the model, among those that are kept now.

It is derived whenever it is shown, so it never names a deleted checkpoint. The keeper does not
delete it while the alarm is active, and shows it in its log; so do `coordinator status`, the
dashboard and the administrators' page.
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
    """The best checkpoint to return to, if there is a sound one."""

    step: int | None  # None: no sound checkpoint is kept, so only the run's beginning is left
    is_before: bool  # the checkpoint is from before the alarm began; False: it is the oldest one

    def advice(self, directory: Path) -> str:
        """Say in a sentence what to return to, and by which command."""
        if self.step is None:
            return "No sound checkpoint is kept: only the run's beginning is left."
        command = f"manyhands coordinator rewind {shlex.quote(str(directory))} {self.step}"
        if self.is_before:
            return f"Return to step {self.step}: {command}"
        return f"No sound checkpoint from before is kept; the oldest one is of step {self.step}: {command}"


def return_point(began: int, kept: Iterable[CheckpointRow], evaluated: Iterable[ValidationRow]) -> ReturnPoint:
    """Choose the newest sound checkpoint from before step `began`; if none is kept, the oldest sound one.

    Withheld checkpoints, and those whose loss on held-out text is not finite, are not sound.
    """
    broken = {row.step for row in evaluated if row.loss is None}
    sound = [row.step for row in kept if not row.withheld and row.step not in broken]
    before = max((step for step in sound if step < began), default=None)
    return ReturnPoint(min(sound, default=None) if before is None else before, before is not None)


def read_return_point(database: Database, began: int) -> ReturnPoint:
    """Read the checkpoint to return to after an alarm that began with this step."""
    return return_point(began, checkpoints(database), validations(database))


def steps_to_spare(database: Database) -> set[int]:
    """Return the steps of the checkpoints to return to after active alarms: these are needed."""
    points = [read_return_point(database, row.step) for row in raised_alarms(database) if row.kind in MODEL_KINDS]
    return {point.step for point in points if point.step is not None}
