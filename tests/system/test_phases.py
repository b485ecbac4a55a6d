"""Phases in a real swarm: all peers change at the same step, to the same numbers as one plain process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.swarm_peer import moments
from tests.support.swarms import (
    CONFIG,
    LOSING,
    SwarmFactory,
    begin_together,
    relative_difference,
    require_one_state,
    train_alone,
)

BOUNDARY, LAST = 2, 4
PARTS = 4  # microbatches of each trainer in a step
SEEDS = [1, 2]
SHORT = {"sequence_length": 64, "microbatch_size": 4}
LONG = {"sequence_length": 128, "microbatch_size": 6}


def phased_config(optimizer: str, like: dict[str, Any] = CONFIG) -> dict[str, Any]:
    """64 tokens and 32 samples a step; after the boundary 128 tokens, 48 samples, and a warm-up to another peak."""
    phase = {"from_step": BOUNDARY, **LONG, "target_batch_size": 6 * PARTS * len(SEEDS), "optimizer": optimizer}
    return {
        **like,
        "model": {**like["model"], "max_position_embeddings": 128},
        "data": SHORT,
        "averaging": {**like["averaging"], "target_batch_size": 4 * PARTS * len(SEEDS)},
        "phases": [phase | {"learning_rate": 0.02, "warmup_steps": 3}],
    }


@pytest.mark.parametrize("optimizer", ["fresh", "keep"])
def test_all_peers_enter_the_phase_at_the_same_step(swarm: SwarmFactory, optimizer: str) -> None:
    """Keeper and trainers change batch, length, rate and moments after step 2; who comes later is in the new phase."""
    config = phased_config(optimizer)
    keeper = swarm.start_keeper(config=config, last_step=LAST)
    trainers = [
        swarm.start(f"trainer-{seed}", "trainer", config, seed=seed, microbatches_per_step=PARTS, last_step=LAST)
        for seed in SEEDS
    ]
    for peer in [*trainers, keeper]:
        step = 0
        while step < LAST:
            outcome = peer.wait_for_step(step + 1)
            step = outcome["step"]
            assert outcome["target_batch_size"] == (32 if step < BOUNDARY else 48)
            if outcome["averaged"]:  # else another's answer was lost on the way, and the keeper's state taken instead
                assert outcome["group_samples"] == (32 if step <= BOUNDARY else 48)
    late = swarm.start("late", "trainer", config, seed=3, last_step=LAST)
    joined = late.joined()
    assert (joined["downloaded"], joined["step"], joined["target_batch_size"]) == (True, LAST, 48)
    peers = [*trainers, late, keeper]
    together = [peer.stop() for peer in peers]
    statistics = [peer.wait_for(lambda said: said["event"] == "left")["moments"] for peer in peers]
    require_one_state(together)
    alone = train_alone(LAST, SEEDS, PARTS, config)
    assert relative_difference(together[0], alone.parameters) < 1e-4
    assert all(each == pytest.approx(statistics[0], rel=1e-3) for each in statistics)
    steps = LAST - BOUNDARY if optimizer == "fresh" else LAST
    assert statistics[0] == pytest.approx(moments(alone.optimizer) | {"step": steps * len(alone.parameters)}, rel=1e-3)


def test_trouble_at_the_boundary_leaves_all_in_the_same_phase(swarm: SwarmFactory) -> None:
    """One peer is killed and one takes the keeper's state just when the phase begins: it begins once."""
    config = phased_config("fresh", LOSING)
    keeper = swarm.start_keeper(config=config, last_step=LAST)
    options: dict[str, Any] = {"microbatch_s": 0.2, "last_step": 0}
    sound = swarm.start("sound", "trainer", config, seed=1, **options)
    spoiled = swarm.start("spoiled", "trainer", config, seed=2, spoil_after_step=BOUNDARY, **options)
    victim = swarm.start("victim", "trainer", config, seed=3, **options)
    begin_together([sound, spoiled, victim], LAST)
    victim.wait_for_step(BOUNDARY)
    victim.kill()
    resync = spoiled.wait_for(
        lambda said: said["event"] == "step" and not said["averaged"] and said["step"] >= BOUNDARY
    )  # before the boundary, too, a peer that is late on a busy machine takes the keeper's state
    assert resync["target_batch_size"] == 48
    peers = [sound, spoiled, keeper]
    for peer in peers:
        peer.wait_for_step(LAST)
    together = [peer.stop() for peer in peers]
    statistics = [peer.wait_for(lambda said: said["event"] == "left")["moments"] for peer in peers]
    require_one_state(together)
    assert all(each == pytest.approx(statistics[0], rel=1e-3) for each in statistics)
    assert statistics[0]["step"] == (LAST - BOUNDARY) * len(together[0])
