"""Speed of the run: samples of the steps that count, over the elapsed time with rounds and waits.

The keeper writes the speed into its view of the swarm. The page, the API, metrics, `coordinator
status`, the doctor and the volunteers' panels read it there. The rates by which peers divide their
work (`peer.swarm.view`) are peers' own claims, capped; they do not measure the run.
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

WINDOW_S = 300.0  # the speed is measured over the steps of this period
LEAST_STEPS = 5  # or over these, if the period has fewer
MOST_STEPS = 600  # in one period: no swarm takes more than two steps a second


class Done(NamedTuple):
    """A completed step."""

    samples: int
    completed_at: float  # Unix seconds


def run_speed(database: Database, now: float) -> float:
    """Return the run's samples per second over the newest steps; 0 before the second step."""
    newest = select(Step.samples, Step.completed_at).order_by(Step.step.desc()).limit(MOST_STEPS)
    with database() as session:
        return speed_of([Done(*row) for row in session.execute(newest)][::-1], now)


def speed_of(steps: Sequence[Done], now: float) -> float:
    """Return samples per second over `steps`, in order, with the delay of an overdue next step."""
    recent = sum(step.completed_at > now - WINDOW_S for step in steps)
    before, *counted = steps[-max(recent, LEAST_STEPS + 1) :] or [Done(0, now)]
    if not counted:
        return 0.0
    taken_s = counted[-1].completed_at - before.completed_at
    waited_s = max(0.0, now - counted[-1].completed_at - taken_s / len(counted))
    return sum(step.samples for step in counted) / (taken_s + waited_s) if taken_s > 0 else 0.0


def batch_left_s(accumulated: int, target: int, speed: float) -> float | None:
    """Return the seconds until the next step's batch is full; None while the speed is unknown."""
    return max(0, target - accumulated) / speed if speed > 0 else None


def total_steps(config: RunConfig, helm: Helm) -> int:
    """Return the run's total of global steps, set by an operator or the last phase's schedule."""
    if helm.last_step is not None:
        return helm.last_step
    return config.at_step(max(_changes(config, helm), default=0)).schedule.total_steps


def time_left_s(config: RunConfig, helm: Helm, swarm: KeeperView | None) -> float | None:
    """Return the seconds until the run's last step; None while the speed is unknown."""
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
    """Return the steps at which settings change, or at which the batch stops growing."""
    phases = (phase.from_step for phase in config.phases)
    return [*phases, config.averaging.batch_warmup_steps, *(order.from_step for order in helm.orders)]
