"""Milestones: what is worth telling a community, as it follows from the run's history alone. Pure.

The first global step; powers of ten of samples; records: the most devices in one step (5, 10, 20, 50, ...), and a loss
on held-out text below another half (4.5, 4.0, ...). Each is reached once: what a return to a checkpoint undoes and is
reached again has the same key, and is told once. Of several thresholds that one step passes only the last counts.
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
    """One of them; `value` in its kind's unit: steps, samples, devices, nats."""

    kind: MilestoneKind
    value: float
    step: int
    at: float  # Unix seconds

    @property
    def key(self) -> str:
        """The same for the same milestone, whenever it is looked for."""
        return f"{self.kind.value}:{self.value:.15g}"


def milestones(steps: Sequence[StepRow], validations: Iterable[ValidationRow]) -> list[Milestone]:
    """All that these steps (in order) and evaluations reached, in the order of steps."""
    kinds = list(MilestoneKind)
    found = [*_of_steps(steps), *_of_losses(validations)]
    return sorted(found, key=lambda milestone: (milestone.step, kinds.index(milestone.kind)))


def _of_steps(steps: Sequence[StepRow]) -> Iterator[Milestone]:
    samples = most_devices = 0
    next_samples = LEAST_SAMPLES
    if steps:
        yield Milestone(MilestoneKind.FIRST_STEP, 1.0, steps[0].step, steps[0].completed_at)
    for row in steps:  # of which there are many, and each page is drawn with them
        samples += row.samples
        if samples >= next_samples:
            yield Milestone(MilestoneKind.SAMPLES, float(power_of_ten(samples)), row.step, row.completed_at)
            next_samples = 10 * power_of_ten(samples)
        if row.devices > most_devices:
            if row.devices >= LEAST_DEVICES and round_number(row.devices) > most_devices:
                yield Milestone(MilestoneKind.DEVICES, float(round_number(row.devices)), row.step, row.completed_at)
            most_devices = row.devices


def _of_losses(validations: Iterable[ValidationRow]) -> Iterator[Milestone]:
    """The first evaluation sets the mark that later ones have to beat."""
    mark: float | None = None
    for row in sorted(validations, key=lambda row: row.step):
        if row.loss is None:
            continue
        passed = math.floor(row.loss / LOSS_GRID) * LOSS_GRID + LOSS_GRID  # the lowest line that it lies below
        if mark is not None and passed < mark:
            yield Milestone(MilestoneKind.LOSS, passed, row.step, row.evaluated_at)
        mark = passed if mark is None else min(mark, passed)


def power_of_ten(number: int) -> int:
    """The largest one that is no larger than `number`, from 1 on."""
    return int(10 ** (len(str(number)) - 1))


def round_number(number: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, ... that is no larger than `number`, from 1 on."""
    power = power_of_ten(number)
    return max(factor * power for factor in (1, 2, 5) if factor * power <= number)
