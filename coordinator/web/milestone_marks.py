"""Milestones on the server's drawing: their words, and which of them share a mark. Pure.

The script that draws the chart does the same (`dashboards/web/milestone_marks.js`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.milestones import Kind, Milestone

Told = tuple[int, str]  # the step, and what was reached there


@dataclass(frozen=True)
class MilestoneTexts:
    """What each kind is called; `{n}` is its value."""

    first_step: str = "The first global step"
    samples: str = "{n} samples"
    devices: str = "Record: {n} devices in one step"
    loss: str = "Record: loss on held-out text below {n}"

    def of(self, milestone: Milestone) -> Told:
        """One of them in words."""
        texts = {
            Kind.FIRST_STEP: self.first_step,
            Kind.SAMPLES: self.samples,
            Kind.DEVICES: self.devices,
            Kind.LOSS: self.loss,
        }
        return milestone.step, texts[milestone.kind].format(n=f"{milestone.value:,.15g}")


def groups(told: Sequence[Told], least_steps: float) -> list[list[Told]]:
    """Those at most so many steps after the first of a group are in it; `told` is in the order of steps."""
    found: list[list[Told]] = []
    for each in told:
        if found and each[0] - found[-1][0][0] <= least_steps:
            found[-1].append(each)
        else:
            found.append([each])
    return found
