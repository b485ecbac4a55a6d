"""Muon in a real swarm: peers equal one plain process, and a late joiner takes the whole state.

Muon holds matrices and, for the other parameters, AdamW's moments. The other optimizers are tried without a swarm.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.swarms import (
    CONFIG,
    TARGET,
    SwarmFactory,
    relative_difference,
    require_one_state,
    train_alone,
)

SEEDS = [1, 2]
LAST = 4
PARTS = TARGET // 4 // len(SEEDS)  # microbatches of each trainer in a step


# Its schedule decays within the steps of the test.
MUON: dict[str, Any] = CONFIG | {
    "optimizer": {"name": "muon", "learning_rate": 3e-3},
    "schedule": {"shape": "warmup_stable_decay", "warmup_steps": 1, "total_steps": 8, "decay_steps": 6},
}


def test_all_peers_take_the_same_steps(swarm: SwarmFactory) -> None:
    """Keeper and trainers go where one process goes; who joins late takes two more steps with them."""
    keeper = swarm.start_keeper(config=MUON, last_step=LAST + 2)
    trainers = [
        swarm.start(f"trainer-{seed}", "trainer", MUON, seed=seed, microbatches_per_step=PARTS, last_step=LAST)
        for seed in SEEDS
    ]
    for peer in trainers:
        peer.wait_for_step(LAST)
    late = swarm.start("late", "trainer", MUON, seed=3, last_step=LAST + 2)
    joined = late.joined()
    assert (joined["downloaded"], joined["step"]) == (True, LAST)
    first = trainers[0].stop()
    trainers[1].go_on_to(LAST + 2)
    peers = [trainers[1], late, keeper]
    for peer in peers:
        peer.wait_for_step(LAST + 2)
    together = [peer.stop() for peer in peers]
    statistics = [peer.wait_for(lambda said: said["event"] == "left")["moments"] for peer in peers]
    require_one_state(together)
    assert all(each == pytest.approx(statistics[0], rel=1e-3) for each in statistics)
    assert relative_difference(first, train_alone(LAST, SEEDS, PARTS, MUON).parameters) < 1e-4
