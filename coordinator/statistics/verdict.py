"""The verdict on a run, for the top of the overview: the run's state and the reason.

`verdict_of` is a pure function; the API also serves its result.
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
INTERVAL_STEPS = 20  # number of newest steps used for the median interval
OVERDUE_TIMES = 5.0  # multiple of the median interval after which a step is overdue
OVERDUE_S = 60.0  # minimum time after which a step is overdue
MOST_LOSSES = 500  # approximate number of losses to examine; longer histories are reduced to medians of blocks


@dataclass(frozen=True)
class LossChange:
    """The relative change of the loss over `over_s` seconds."""

    share: float  # relative change, such as -0.03 for 3% lower
    over_s: float
    best_step: int | None = None  # step of the minimum, if the loss has risen since then


@dataclass(frozen=True)
class Departures:
    """The number of devices that left, out of `of` devices seen in the last `within_s` seconds."""

    devices: int
    of: int
    within_s: float


@dataclass(frozen=True)
class RunVerdict:
    """The state of a run, the reason, and supporting figures."""

    state: State
    reason: str  # "steady", a kind of problem, or the kind of an active alarm
    since: float | None = None  # Unix time at which the reason began, if known
    step_interval_s: float | None = None
    loss_change: LossChange | None = None  # change over the last day, or since the phase began; None for too few steps
    left: Departures | None = None  # set if more than half of the devices have left


@dataclass(frozen=True)
class RunSituation:
    """The facts from which a verdict is derived."""

    now: float  # Unix time in seconds
    keeper: KeeperView | None  # the keeper's last report; None before the first
    steps: Sequence[StepRow]  # global steps in ascending order
    phase_from_step: int
    total_steps: int
    recent_devices: int = 0  # devices connected now or recently
    online_devices: int = 0
    alarms: Sequence[AlarmRow] = ()  # active alarms, oldest first
    paused: bool = False
    store_answers: bool = True


def verdict_of(run: RunSituation) -> RunVerdict:
    """Return the verdict on a run; of several problems, it states the most fundamental one."""
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
    """Return the departures if most of the recent devices (at least two) have left, else None.

    The larger of the coordinator's and the keeper's device counts is used, because a restart of
    either process resets its count.
    """
    here = max(run.online_devices, run.keeper.peers if run.keeper else 0)
    gone = run.recent_devices - here
    return Departures(gone, run.recent_devices, RECENT_S) if gone > max(1, run.recent_devices / 2) else None


def usual_interval_s(steps: Sequence[StepRow]) -> float | None:
    """Return the median interval between the newest steps, or None for fewer than two steps."""
    intervals = [after.completed_at - before.completed_at for before, after in pairwise(steps[-INTERVAL_STEPS - 1 :])]
    return max(0.0, median(intervals)) if intervals else None


def loss_change(steps: Sequence[StepRow], phase_from_step: int, now: float) -> LossChange | None:
    """Return the change in loss since its minimum if it has risen, otherwise over the last day.

    Only the current phase's steps of the last day are compared; None if there are too few.
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
    """Reduce the losses to about `MOST_LOSSES` block medians, each with the block's last step."""
    known = [(row.step, row.loss) for row in steps if row.loss is not None]
    width = 1 + len(known) // MOST_LOSSES
    blocks = [known[end - width : end] for end in range(len(known), width - 1, -width)]
    return [(block[-1][0], median(loss for _, loss in block)) for block in reversed(blocks)]
