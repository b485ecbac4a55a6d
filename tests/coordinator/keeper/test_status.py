"""The swarm's status that the keeper writes for the service."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.keeper.status import StatusWriter
from coordinator.ledger.keeper_status import KeeperView, read_swarm_status
from coordinator.ledger.speed import batch_left_s
from coordinator.statistics.swarm_health import read_figures
from coordinator.store.engine import Database
from coordinator.store.models import Step
from peer.reporting.metrics import RoundTally
from peer.swarm.swarm import SwarmProgress
from tests.support.keeper_scene import MOVED


def test_what_the_swarm_does_is_written_for_the_service(database: Database) -> None:
    """Its step and batch, when its own daemon was heard last, its speed by the steps that count, rounds and peers."""
    facts = {"era": 0, "samples": 60, "loss_sum": 0.0, "loss_samples": 0, "devices": 1, "target_batch_size": 64}
    with database.begin() as session:
        session.add_all(Step(step=step, completed_at=10.0 * step - 30.0, **facts) for step in (1, 2))
    progress = SwarmProgress(2, 0, swarm_samples=30, target_batch_size=64, peers=3, samples_per_second=0.0)
    rounds, census = RoundTally().with_failure().with_success(3.0), (("trainer", True, 2),)
    swarm: Any = SimpleNamespace(progress=lambda: progress, addresses=(MOVED,), heard_at=17.0)
    swarm.rounds, swarm.census, swarm.missing_auxiliaries = rounds, census, 2
    StatusWriter(database, swarm, lambda: 4.0).write()
    status = read_swarm_status(database)
    assert status is not None
    speed = status.samples_per_second
    assert 0 < speed < 6.0
    left_s = batch_left_s(30, 64, speed)
    assert status == KeeperView(2, 0, 30, 64, 3, speed, left_s, (MOVED,), updated_at=17.0)
    figures = read_figures(database, since=0.0)
    assert (figures.rounds, figures.census, figures.missing_auxiliaries) == (rounds, census, 2)
