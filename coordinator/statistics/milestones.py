"""Pure functions that derive a run's milestones from its steps and evaluations.

Milestones are the first global step, powers of ten in samples, and records in the number of devices
per step (5, 10, 20, 50, ...) and in the validation loss (4.5, 4.0, ...). A milestone reached again
after a rewind has the same key and is announced only once. If a step passes several thresholds of a
kind, only the last one is a milestone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from coordinator.checkpoints.validations import ValidationRow
from coordinator.ledger.reading import StepRow

LEAST_SAMPLES = 1000
LEAST_DEVICES = 5
LOSS_GRID = 0.5


class MilestoneKind(str, Enum):
    """The kind of a milestone."""

    FIRST_STEP = "first-step"
    SAMPLES = "samples"
    DEVICES = "devices"
    LOSS = "loss"


@dataclass(frozen=True)
class Milestone:
    """A milestone; `value` is in the unit of its kind: steps, samples, devices or nats."""

    kind: MilestoneKind
    value: float
    step: int
    at: float  # Unix time in seconds

    @property
    def key(self) -> str:
        """The milestone's identifier, which is the same each time that the milestone is reached."""
        return f"{self.kind.value}:{self.value:.15g}"


def milestones(steps: Sequence[StepRow], validations: Iterable[ValidationRow]) -> list[Milestone]:
    """Return the milestones of these steps and evaluations, ordered by step."""
    kinds = list(MilestoneKind)
    found = [*_of_steps(steps), *_of_losses(validations)]
    return sorted(found, key=lambda milestone: (milestone.step, kinds.index(milestone.kind)))


def _of_steps(steps: Sequence[StepRow]) -> Iterator[Milestone]:
    samples = most_devices = 0
    next_samples = LEAST_SAMPLES
    if steps:
        yield Milestone(MilestoneKind.FIRST_STEP, 1.0, steps[0].step, steps[0].completed_at)
    for row in steps:  # a hot loop: runs have many steps, and every page needs milestones
        samples += row.samples
        if samples >= next_samples:
            yield Milestone(MilestoneKind.SAMPLES, float(power_of_ten(samples)), row.step, row.completed_at)
            next_samples = 10 * power_of_ten(samples)
        if row.devices > most_devices:
            if row.devices >= LEAST_DEVICES and round_number(row.devices) > most_devices:
                yield Milestone(MilestoneKind.DEVICES, float(round_number(row.devices)), row.step, row.completed_at)
            most_devices = row.devices


def _of_losses(validations: Iterable[ValidationRow]) -> Iterator[Milestone]:
    """Yield the records in validation loss; the first evaluation only sets the level to beat."""
    mark: float | None = None
    for row in sorted(validations, key=lambda row: row.step):
        if row.loss is None:
            continue
        passed = math.floor(row.loss / LOSS_GRID) * LOSS_GRID + LOSS_GRID  # lowest threshold above the loss
        if mark is not None and passed < mark:
            yield Milestone(MilestoneKind.LOSS, passed, row.step, row.evaluated_at)
        mark = passed if mark is None else min(mark, passed)


def power_of_ten(number: int) -> int:
    """Return the largest power of ten that is at most `number` (1 or more)."""
    return int(10 ** (len(str(number)) - 1))


def round_number(number: int) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50, ... that is at most `number` (1 or more)."""
    power = power_of_ten(number)
    return max(factor * power for factor in (1, 2, 5) if factor * power <= number)
