"""Comparison of a past run's measured figures with its rehearsals, to show their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from peer.config.training import Averaging
from peer.rehearsal.forecast.report import RehearsalReport, SeedQuantiles, shown
from peer.rehearsal.scenario import MeasuredRun
from peer.rehearsal.swarm import RehearsedRun
from peer.reporting.messages import LostCause

ALIKE = 1.1  # ratio of two durations that count as equal


@dataclass(frozen=True)
class PastComparison:
    """A report on rehearsals of a past run, with the run's measured figures."""

    measured: MeasuredRun
    report: RehearsalReport

    @property
    def measured_step_s(self) -> SeedQuantiles:
        """The times between successive steps of the run."""
        return SeedQuantiles(*self.measured.step_s)

    @property
    def rehearsed_step_s(self) -> SeedQuantiles | None:
        """The times between successive steps of all rehearsals; None if no rehearsal took two steps."""
        times = [later.at_s - sooner.at_s for run in self.report.runs for sooner, later in pairwise(run.steps)]
        return SeedQuantiles.of(times) if times else None

    @property
    def changes(self) -> tuple[str, ...]:
        """The `averaging` settings that differ from those of the measured run."""
        then, now = self.measured.averaging, self.report.config.averaging
        if then.compression == "auto" and self.report.choice is not None:  # both modes were chosen by the same rule
            now = now.model_copy(update={"compression": "auto", "powersgd_rank": 0})
        return tuple(
            f"`averaging.{key}` ({getattr(now, key)}, measured with {getattr(then, key)})"
            for key in Averaging.model_fields
            if getattr(then, key) != getattr(now, key)
        )

    @property
    def is_alike(self) -> bool:
        """Whether each median step time lies within the other's spread."""
        real, virtual = self.measured_step_s, self.rehearsed_step_s
        return virtual is not None and _holds(virtual, real.middle) and _holds(real, virtual.middle)

    def rows(self) -> list[Sequence[str]]:
        """Return a table row per figure: title, measured, rehearsed."""
        virtual, runs = self.rehearsed_step_s, self.report.runs
        steps = SeedQuantiles.of(len(run.steps) for run in runs)
        counted = SeedQuantiles.of(_counted_share(run) for run in runs)
        return [
            (
                "Time from one step to the next",
                _spread(self.measured_step_s, "s"),
                "never" if virtual is None else _spread(virtual, "s"),
            ),
            ("Steps in this time", shown(self.measured.steps, ""), _spread(steps, "")),
            ("Reported samples that count", shown(self.measured.counted_share, "%"), _spread(counted, "%")),
        ]

    def verdict(self) -> Iterator[str]:
        """Yield the conclusions for the operator as sentences."""
        if self.changes:
            yield f"The rehearsed run differs: {', '.join(self.changes)}. The columns compare the two."
            return
        real, virtual = self.measured_step_s, self.rehearsed_step_s
        if virtual is None:
            yield "No rehearsal took two steps: its figures do not fit this swarm."
            return
        one, another = _holds(virtual, real.middle), _holds(real, virtual.middle)
        yield (
            f"The measured median step time lies {_where(one)} the rehearsed spread, and the rehearsed median "
            f"{_where(another)} the measured spread (5 to 95 % of the steps)."
        )
        if real.middle > 0:
            yield f"Rehearsed steps take {virtual.middle / real.middle:.2f} times as long as the run's own."

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        virtual = self.rehearsed_step_s
        return {
            "measured_step_s": self.measured_step_s.to_json(),
            "rehearsed_step_s": None if virtual is None else virtual.to_json(),
            "measured_steps": self.measured.steps,
            "measured_counted_share": self.measured.counted_share,
            "changes": list(self.changes),
            "is_alike": self.is_alike,
        }


def _holds(spread: SeedQuantiles, value: float) -> bool:
    """Return whether a value is in the spread; steps that all take the same time have none of their own."""
    return spread.low / ALIKE <= value <= spread.high * ALIKE


def _where(within: bool) -> str:
    return "within" if within else "outside"


def _spread(spread: SeedQuantiles, unit: str) -> str:
    low, middle, high = (shown(value, unit) for value in (spread.low, spread.middle, spread.high))
    return f"{middle} ({low} to {high})"


def _counted_share(run: RehearsedRun) -> float:
    """Return the fraction of reported samples that count; a departing peer reports no losses."""
    counted = sum(each.work.counted for each in run.devices)
    lost = sum(each.work.lost.total() - each.work.lost[LostCause.LEFT.value] for each in run.devices)
    return counted / (counted + lost) if counted else 0.0
