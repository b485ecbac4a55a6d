"""Muon, and a growing batch, in a real swarm: peers equal one plain process, and a late joiner takes the whole state.

Muon holds matrices and, for the other parameters, AdamW's moments. The other optimizers are tried without a swarm.
"""

from __future__ import annotations

from typing import Any

import pytest

from peer.config.run import RunConfig
from tests.support.swarms import (
    CONFIG,
    TARGET,
    SwarmFactory,
    begin_together,
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
    assert relative_difference(first, train_alone(LAST, SEEDS, PARTS, MUON)) < 1e-4


BATCHES = [8, 16, 24, 32]


def test_all_peers_let_the_batch_grow_alike(swarm: SwarmFactory) -> None:
    """Each step has the batch that its number gives, at the keeper and at every trainer."""
    growing = {"initial_batch_size": BATCHES[0], "batch_warmup_steps": 3}
    config = CONFIG | {"averaging": CONFIG["averaging"] | growing}
    run = RunConfig.from_mapping(config)
    assert [run.at_step(step).averaging.target_batch_size for step in range(4)] == BATCHES
    keeper = swarm.start_keeper(config=config, last_step=LAST)
    trainers = [swarm.start(f"trainer-{seed}", "trainer", config, seed=seed, last_step=0) for seed in SEEDS]
    begin_together(trainers, LAST)
    for peer in [*trainers, keeper]:
        step = 0
        while step < LAST:
            outcome = peer.wait_for_step(step + 1)
            step = outcome["step"]
            assert outcome["target_batch_size"] == ([*BATCHES, TARGET])[step]
            if outcome["averaged"]:
                assert outcome["group_samples"] >= BATCHES[step - 1]
    require_one_state([peer.stop() for peer in [*trainers, keeper]])
