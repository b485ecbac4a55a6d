"""Data points of a run for its sinks, and each sink's position: the last points written to it.

Each global step and each evaluation is one point, written once, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict
from sqlalchemy import select

from coordinator.checkpoints.validations import ValidationRow, validations
from coordinator.store.engine import Database
from coordinator.store.eras import current_era
from coordinator.store.models import Era, Step

MOST_AT_ONCE = 20  # maximum number of steps, and of evaluations, to write (or lose) at once
EVALUATED = ("loss", "perplexity", "accuracy", "sop_accuracy", "detection_accuracy", "detection_f1")


@dataclass(frozen=True)
class Point:
    """A data point for sinks: a global step or an evaluation."""

    step: int
    at: float  # Unix time in seconds
    values: Mapping[str, float]  # finite values only
    evaluated: bool = False  # True for an evaluation, False for a global step


class SinkPosition(BaseModel):
    """A sink's position: its number of rows, and the last step and evaluation written to it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rows: int = 0
    era: int = 0
    step: int = 0  # last global step written
    validated_at: float = 0.0  # Unix time of the last evaluation written

    def after(self, point: Point) -> SinkPosition:
        """Return the position after writing this point."""
        reached = {"validated_at": point.at} if point.evaluated else {"step": point.step}
        return self.model_copy(update={"rows": self.rows + 1, **reached})


def in_current_era(database: Database, position: SinkPosition) -> SinkPosition:
    """Return the position, moved back if the run was rewound since the sink's last write."""
    with database() as session:
        era = current_era(session)
        undone_after = session.scalars(select(Era.after_step).where(Era.era > position.era)).all()
    return position.model_copy(update={"era": era, "step": min([position.step, *undone_after])})


def next_points(database: Database, position: SinkPosition, settled_before: float) -> list[Point]:
    """Return the next points: first steps completed by `settled_before`, then evaluations."""
    settled = Step.completed_at <= settled_before
    following = select(Step).where(Step.step > position.step, settled).order_by(Step.step).limit(MOST_AT_ONCE)
    with database() as session:
        steps = [step_point(row) for row in session.scalars(following)]
    news = [row for row in validations(database) if row.evaluated_at > position.validated_at]
    return steps + [evaluation_point(row) for row in sorted(news, key=lambda row: row.evaluated_at)[:MOST_AT_ONCE]]


def step_point(row: Step) -> Point:
    """Convert a global step to a data point."""
    values = {
        "train/loss": row.loss_sum / row.loss_samples if row.loss_samples else None,
        "train/samples": row.samples,
        "train/devices": row.devices,
        "train/batch_share": row.samples / max(1, row.target_batch_size),
        "train/era": row.era,
    }
    return Point(row.step, row.completed_at, _finite(values))


def evaluation_point(row: ValidationRow) -> Point:
    """Convert a checkpoint's results on held-out text to a data point."""
    values = {f"validation/{name}": getattr(row, name) for name in EVALUATED}
    return Point(row.step, row.evaluated_at, _finite(values), evaluated=True)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
