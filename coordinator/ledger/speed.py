"""The speed of the run: samples of valid steps per second of wall time, including rounds and waits.

The keeper writes the speed into the status of the swarm. Pages, API, metrics, `coordinator status`,
the doctor and volunteers' panels read it there. The rates that peers use to divide their work
(`peer.progress.view`) are capped claims of individual peers; they do not measure the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import select

from coordinator.ledger.keeper_status import KeeperView
from coordinator.ledger.steering import Helm
from coordinator.store.engine import Database
from coordinator.store.models import Step
from peer.config.run import RunConfig

WINDOW_S = 300.0  # length of the measuring window in seconds
LEAST_STEPS = 5  # minimum number of steps to measure, even if they take longer than the window
MOST_STEPS = 600  # maximum number of steps to read; no swarm exceeds two steps per second


class Done(NamedTuple):
    """A completed step."""

    samples: int
    completed_at: float  # Unix time in seconds


def run_speed(database: Database, now: float) -> float:
    """Return the run's samples per second over the latest steps; 0 before the second step."""
    newest = select(Step.samples, Step.completed_at).order_by(Step.step.desc()).limit(MOST_STEPS)
    with database() as session:
        return speed_of([Done(*row) for row in session.execute(newest)][::-1], now)


def speed_of(steps: Sequence[Done], now: float) -> float:
    """Return samples per second over `steps` (in order), including the delay of an overdue step."""
    recent = sum(step.completed_at > now - WINDOW_S for step in steps)
    before, *counted = steps[-max(recent, LEAST_STEPS + 1) :] or [Done(0, now)]
    if not counted:
        return 0.0
    taken_s = counted[-1].completed_at - before.completed_at
    waited_s = max(0.0, now - counted[-1].completed_at - taken_s / len(counted))
    return sum(step.samples for step in counted) / (taken_s + waited_s) if taken_s > 0 else 0.0


def batch_left_s(accumulated: int, target: int, speed: float) -> float | None:
    """Return the seconds until the next step's batch is full, or None if the speed is unknown."""
    return max(0, target - accumulated) / speed if speed > 0 else None


def total_steps(config: RunConfig, helm: Helm) -> int:
    """Return the run's last step, as set by the operator or by the last phase's schedule."""
    if helm.last_step is not None:
        return helm.last_step
    return config.at_step(max(_changes(config, helm), default=0)).schedule.total_steps


def time_left_s(config: RunConfig, helm: Helm, swarm: KeeperView | None) -> float | None:
    """Return the seconds until the run's last step, or None if the speed is unknown."""
    if swarm is None:
        return None
    changes, last = _changes(config, helm), total_steps(config, helm)
    bounds = [swarm.step, *sorted({step for step in changes if swarm.step < step < last}), max(swarm.step, last)]
    samples = sum(
        (end - begin) * (helm.batch_after(begin, config) + helm.batch_after(max(begin, end - 1), config)) // 2
        for begin, end in pairwise(bounds)
    )
    return batch_left_s(swarm.samples_accumulated, samples, swarm.samples_per_second)


def _changes(config: RunConfig, helm: Helm) -> list[int]:
    """Return the steps at which settings change or the batch size stops growing."""
    phases = (phase.from_step for phase in config.phases)
    return [*phases, config.averaging.batch_warmup_steps, *(order.from_step for order in helm.orders)]
