"""Pure functions that detect a rise in the loss, relative to its minimum and its noise.

The loss is smoothed by running medians, which ignore a few outliers. A narrow median shows a jump
after three steps; a wide one shows a slow rise in strong noise. Used by `alarms` and `verdict`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SMOOTHED = 5  # width of the narrowest median, in steps
WIDTHS = (SMOOTHED, 21, 81)  # widths of the medians in steps, all odd
LEAST_RISE = 1 / 20  # smallest significant rise, as a fraction of the minimum
LEAST_ERRORS = 10.0  # smallest significant rise, in standard errors; high, because the minimum is low partly by chance
FIRST_RISE = 1 / 2  # smallest significant rise while the noise is unknown, as a fraction of the minimum
NEAR_ERRORS = 3.0  # a loss within this many standard errors counts as near the minimum
SCATTER_KNOWN = 20  # minimum number of differences for an estimate of the noise
DEVIATION = 0.6745 * math.sqrt(1.5)  # median of |a - (b + c) / 2| for standard normal a, b, c


@dataclass(frozen=True)
class Rise:
    """A significant rise of the loss above its minimum."""

    began: int  # first step after the last loss near the minimum
    now: float
    best: float
    best_step: int


def rise_of(losses: Sequence[tuple[int, float]], least: float = LEAST_RISE) -> Rise | None:
    """Return the rise of the loss above its minimum; None if noise or below `least` * minimum.

    If medians of several widths show a rise, the narrowest gives the most accurate first step.
    """
    values = [loss for _, loss in losses]
    narrow = medians_of(values, SMOOTHED)
    if not narrow or narrow[-1] <= min(narrow):
        return None  # the newest loss is the minimum: no rise, even if wide medians, which lag, show one
    scatter = scatter_of(narrow)
    for width in WIDTHS:
        middle_steps = [step for step, _ in losses[width // 2 :]]
        error = None if scatter is None else scatter * math.sqrt(SMOOTHED / width)
        if (rise := _rise(middle_steps, medians_of(values, width), error, least)) is not None:
            return rise
    return None


def medians_of(values: Sequence[float], width: int) -> list[float]:
    """Return the medians of all windows of an odd width; an empty list for too few values."""
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
    """Estimate the standard error of five-step medians; return None for too few medians.

    Each median is compared with the mean of its two non-overlapping neighbours, so that a trend
    cancels out.
    """
    triples = zip(medians, medians[SMOOTHED:], medians[2 * SMOOTHED :], strict=False)
    differences = [abs(here - (before + after) / 2) for before, here, after in triples]
    return median(differences) / DEVIATION if len(differences) >= SCATTER_KNOWN else None


def _rise(steps: Sequence[int], course: Sequence[float], error: float | None, least: float) -> Rise | None:
    """Return the current rise, if any; it begins above a limit and ends below half the limit."""
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
