"""A verdict on a run for people who look for five seconds: is it healthy, and if not, why?

The decision (`verdict_of`) is pure. The overview shows it at the top; the API serves it, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

from coordinator.ledger.keeper_status import KEEPER_SILENT_S, KeeperView
from coordinator.ledger.reading import StepRow
from coordinator.ledger.sessions import RECENT_S
from coordinator.statistics.alarms import MODEL_KINDS, AlarmRow
from coordinator.statistics.course import SMOOTHED, rise_of

State = Literal["healthy", "waiting", "trouble", "finished"]
DAY_S = 86_400.0
INTERVAL_STEPS = 20  # newest steps whose median interval is the usual one
OVERDUE_TIMES = 5.0  # usual intervals without a step after which it is overdue,
OVERDUE_S = 60.0  # but not before so many seconds
MOST_LOSSES = 500  # examined for a rise; more steps are reduced by medians


@dataclass(frozen=True)
class LossChange:
    """Relative change of the loss from its value `over_s` seconds ago, or from its best, to now."""

    share: float  # -0.03: three percent lower
    over_s: float
    best_step: int | None = None  # the step of the best loss, with which a rising loss is compared


@dataclass(frozen=True)
class Departures:
    """Devices that have left, of those that were here within the last `within_s` seconds."""

    devices: int
    of: int
    within_s: float


@dataclass(frozen=True)
class RunVerdict:
    """The state of a run with its reason, and the figures that support it."""

    state: State
    reason: str  # "steady", or a word for the trouble; the kind of an alarm where one is raised
    since: float | None = None  # Unix seconds, where the reason has a beginning
    step_interval_s: float | None = None
    loss_change: LossChange | None = None  # over a day, or since the phase began; None while it has too few steps
    left: Departures | None = None  # if most devices have left recently


@dataclass(frozen=True)
class RunSituation:
    """The facts that a verdict depends on."""

    now: float  # Unix seconds
    keeper: KeeperView | None  # None before the keeper's first report
    steps: Sequence[StepRow]  # in order
    phase_from_step: int
    total_steps: int
    recent_devices: int = 0  # connected now or shortly before
    online_devices: int = 0
    alarms: Sequence[AlarmRow] = ()  # the oldest first
    paused: bool = False
    store_answers: bool = True


def verdict_of(run: RunSituation) -> RunVerdict:
    """Judge a run by its most fundamental trouble; `healthy` if there is none."""
    interval_s = usual_interval_s(run.steps)
    state, reason, since = _decide(run, interval_s)
    left = departures(run) if reason == "left" else None
    return RunVerdict(state, reason, since, interval_s, loss_change(run.steps, run.phase_from_step, run.now), left)


def _decide(run: RunSituation, interval_s: float | None) -> tuple[State, str, float | None]:
    keeper, last_at = run.keeper, run.steps[-1].completed_at if run.steps else None
    if run.steps and run.steps[-1].step >= run.total_steps:
        return "finished", "finished", last_at
    if not run.store_answers:
        return "trouble", "store_silent", None
    if keeper is None:
        return "waiting", "no_keeper", None
    if run.now - keeper.updated_at > KEEPER_SILENT_S:
        return "trouble", "keeper_silent", keeper.updated_at
    if run.alarms:
        worst = next((alarm for alarm in run.alarms if alarm.kind in MODEL_KINDS), run.alarms[0])
        return "trouble", worst.kind, worst.raised_at
    if run.paused:
        return "waiting", "paused", None
    if not keeper.peers:
        return "waiting", "no_peers", last_at
    if last_at is None:
        return "waiting", "first_step", None
    return _decide_on_training(run, interval_s, last_at)


def _decide_on_training(run: RunSituation, interval_s: float | None, last_at: float) -> tuple[State, str, float | None]:
    if interval_s is not None and run.now - last_at > max(OVERDUE_S, OVERDUE_TIMES * interval_s):
        return "trouble", "overdue", last_at
    if departures(run) is not None:
        return "trouble", "left", None
    return "healthy", "steady", None


def departures(run: RunSituation) -> Departures | None:
    """Count the departed devices if they are more than half of the recent ones, and more than one.

    The larger of the coordinator's and the keeper's counts of devices is used: a restart of one of
    them is no departure.
    """
    here = max(run.online_devices, run.keeper.peers if run.keeper else 0)
    gone = run.recent_devices - here
    return Departures(gone, run.recent_devices, RECENT_S) if gone > max(1, run.recent_devices / 2) else None


def usual_interval_s(steps: Sequence[StepRow]) -> float | None:
    """Return the median seconds between the newest steps; None before there are two."""
    intervals = [after.completed_at - before.completed_at for before, after in pairwise(steps[-INTERVAL_STEPS - 1 :])]
    return max(0.0, median(intervals)) if intervals else None


def loss_change(steps: Sequence[StepRow], phase_from_step: int, now: float) -> LossChange | None:
    """Compare the newest losses with the best ones if they have risen from these; else with a day ago.

    Only steps of the last day and of the current phase count.
    """
    begin = max(
        bisect_left(steps, now - DAY_S, key=lambda row: row.completed_at),
        bisect_left(steps, phase_from_step + 1, key=lambda row: row.step),
    )
    if len(steps) - begin < 2 * SMOOTHED:
        return None
    if (rise := rise_of(_thinned(steps[begin:]), least=0.0)) is not None and rise.best > 0:
        best_at = steps[bisect_left(steps, rise.best_step, key=lambda row: row.step)].completed_at
        return LossChange(rise.now / rise.best - 1, max(0.0, steps[-1].completed_at - best_at), rise.best_step)
    early, late = steps[begin : begin + SMOOTHED], steps[-SMOOTHED:]
    losses = [[row.loss for row in rows if row.loss is not None] for rows in (early, late)]
    if not all(losses) or fmean(losses[0]) <= 0:
        return None
    over_s = late[-1].completed_at - early[0].completed_at
    return LossChange(share=fmean(losses[1]) / fmean(losses[0]) - 1, over_s=max(0.0, over_s))


def _thinned(steps: Sequence[StepRow]) -> list[tuple[int, float]]:
    """Reduce losses to about `MOST_LOSSES` medians of successive ones, each with its last step."""
    known = [(row.step, row.loss) for row in steps if row.loss is not None]
    width = 1 + len(known) // MOST_LOSSES
    blocks = [known[end - width : end] for end in range(len(known), width - 1, -width)]
    return [(block[-1][0], median(loss for _, loss in block)) for block in reversed(blocks)]
