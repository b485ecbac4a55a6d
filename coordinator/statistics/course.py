"""The course of a loss: smoothed, compared with its best, and measured by its own scatter.

A loss is smoothed by medians of successive steps, which a few bad steps do not move. A narrow median sees a jump after
three steps, a wide one a slow rise under much noise. Alarms and the verdict use it. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SMOOTHED = 5  # steps of the narrowest median
WIDTHS = (SMOOTHED, 21, 81)  # steps of medians, odd
LEAST_RISE = 1 / 20  # of the best: a smaller one is no alarm, however certain it is
LEAST_ERRORS = 10.0  # standard errors of the smoothed loss: the best of hundreds is low by chance
FIRST_RISE = 1 / 2  # of the best, while the scatter is not known
NEAR_ERRORS = 3.0  # a loss so close to the best may be as good
SCATTER_KNOWN = 20  # comparisons of medians that an estimate of the scatter needs
DEVIATION = 0.6745 * math.sqrt(1.5)  # of |a - (b + c) / 2|, the median for normal values of deviation 1


@dataclass(frozen=True)
class Rise:
    """A loss that has left its course upwards."""

    began: int  # the step after which the loss was never again near its best
    now: float
    best: float
    best_step: int


def rise_of(losses: Sequence[tuple[int, float]], least: float = LEAST_RISE) -> Rise | None:
    """Return the rise of (step, loss) from the best, if above chance and `least` times the best.

    If medians of several widths show a rise, the narrowest counts: it shows best when it began.
    """
    values = [loss for _, loss in losses]
    narrow = medians_of(values, SMOOTHED)
    if not narrow or narrow[-1] <= min(narrow):
        return None  # the newest losses are the best; wide medians still lag
    scatter = scatter_of(narrow)
    for width in WIDTHS:
        middle_steps = [step for step, _ in losses[width // 2 :]]
        error = None if scatter is None else scatter * math.sqrt(SMOOTHED / width)
        if (rise := _rise(middle_steps, medians_of(values, width), error, least)) is not None:
            return rise
    return None


def medians_of(values: Sequence[float], width: int) -> list[float]:
    """Return the medians of all windows of this odd width; none if there are fewer values."""
    if len(values) < width:
        return []
    window = sorted(values[:width])
    medians = [window[width // 2]]
    for old, new in zip(values, values[width:], strict=False):
        del window[bisect_left(window, old)]
        insort(window, new)
        medians.append(window[width // 2])
    return medians


def scatter_of(medians: Sequence[float]) -> float | None:
    """Estimate the standard error of such medians of five steps about the loss's trend; None for too few of them.

    Each is compared with the mean of the two that are next to it and share no step with it: a steady trend cancels out.
    """
    triples = zip(medians, medians[SMOOTHED:], medians[2 * SMOOTHED :], strict=False)
    differences = [abs(here - (before + after) / 2) for before, here, after in triples]
    return median(differences) / DEVIATION if len(differences) >= SCATTER_KNOWN else None


def _rise(steps: Sequence[int], course: Sequence[float], error: float | None, least: float) -> Rise | None:
    """Follow the course from its best: a rise begins above the line, and ends below half of it."""
    if not course:
        return None
    best = min(course)
    best_at = course.index(best)
    line = FIRST_RISE * best if error is None else max(least * best, LEAST_ERRORS * error)
    near = line / 2 if error is None else min(NEAR_ERRORS * error, line / 2)
    near_at, has_risen = best_at, False
    for index in range(best_at, len(course)):
        height = course[index] - best
        has_risen = height > (line / 2 if has_risen else line)
        if height <= near:
            near_at = index
    return Rise(steps[near_at + 1], course[-1], best, steps[best_at]) if has_risen else None
