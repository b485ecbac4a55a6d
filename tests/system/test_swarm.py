"""Real peers in a real hivemind swarm on this machine: the same numbers, whatever happens to single peers.

Each test trains a few global steps of a few seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from peer.averaging.requirements import LEAST_FILLED
from tests.support.swarms import (
    LOSING,
    MICROBATCH,
    ROOT,
    RUN,
    TARGET,
    SwarmFactory,
    begin_together,
    relative_difference,
    require_one_state,
    train_alone,
)
from tests.support.waiting import PATIENCE_S


@pytest.mark.smoke
def test_two_peers_equal_one_plain_process(swarm: SwarmFactory) -> None:
    """Two peers that share the target batch end, after five global steps, with one plain process's parameters.

    The keeper begins with a fresh interpreter, as all do in earnest, and the other two are forked.
    """
    keeper = swarm.start_keeper(fresh=True)
    parts = TARGET // 2 // MICROBATCH
    trainers = [
        swarm.start(f"trainer-{seed}", "trainer", seed=seed, microbatches_per_step=parts, last_step=5)
        for seed in (1, 2)
    ]
    for trainer in trainers:
        outcome = trainer.wait_for_step(5)
        assert (outcome["samples"], outcome["group_samples"], outcome["group_size"]) == (TARGET // 2, TARGET, 3)
    keeper.wait_for_step(5)
    alone = train_alone(5, [1, 2], parts).parameters
    together = [peer.stop() for peer in [*trainers, keeper]]
    for parameters in together:
        assert relative_difference(parameters, alone) < 1e-4
    for parameters in together[1:]:
        assert all(torch.equal(parameters[name], together[0][name]) for name in parameters)


@pytest.mark.smoke
def test_killed_peer_costs_its_share_only(swarm: SwarmFactory) -> None:
    """When one of three peers is killed within a step, the others make the batch up and stay equal."""
    keeper = swarm.start_keeper(config=LOSING, last_step=6)
    first, second, victim = trainers = [
        swarm.start(f"trainer-{seed}", "trainer", LOSING, seed=seed, microbatch_s=0.3, last_step=0)
        for seed in (1, 2, 3)
    ]
    begin_together(trainers, 6)
    victim.wait_for_step(2)
    time.sleep(0.5)  # into the next step: the victim has accumulated something by now
    victim.kill()
    for survivor in (first, second):
        for step in (4, 5, 6):
            outcome = survivor.wait_for_step(step)
            assert outcome["averaged"]
            assert outcome["group_samples"] >= LEAST_FILLED * TARGET
    keeper.wait_for_step(6)
    together = [peer.stop() for peer in (first, second, keeper)]
    require_one_state(together)


def test_late_joiner_takes_the_keepers_state_and_follows(swarm: SwarmFactory) -> None:
    """A peer that joins in the middle takes step and state of the keeper.

    What it misses before its first microbatch it takes as averages, and then it contributes.
    """
    keeper = swarm.start_keeper(last_step=2)
    early = swarm.start("early", "trainer", seed=1, microbatch_s=0.2, last_step=2)
    early.wait_for_step(2)
    late = swarm.start("late", "trainer", seed=2, microbatch_s=0.2, last_step=2)
    joined = late.joined()
    assert joined["downloaded"]
    assert joined["step"] == 2
    for peer in (early, keeper):  # they waited for the late one, however long it took to start
        peer.go_on_to(5)
    for peer in (early, keeper):
        peer.wait_for_step(5)
    for peer in (early, late, keeper):
        peer.go_on_to(8)
    for step in (3, 4, 5):
        followed = late.wait_for(lambda said: said["event"] == "step")
        assert (followed["step"], followed["followed_steps"], followed["averaged"]) == (step, 1, False)
    late.wait_for(lambda said: said["event"] == "step" and said["averaged"] and said["samples"] > 0)
    for peer in (early, late, keeper):
        peer.wait_for_step(8)
    together = [peer.stop() for peer in (early, late, keeper)]
    require_one_state(together)


@pytest.mark.smoke
def test_outsider_can_take_no_part(swarm: SwarmFactory) -> None:
    """A plain hivemind peer with all addresses and a member's token reads no record, joins no group, gets no state."""
    keeper = swarm.start_keeper()
    trainer = swarm.start("trainer", "trainer", seed=1, microbatch_s=0.2)
    trainer.wait_for_step(1)
    script, token = ROOT / "tests/system/outsider.py", swarm.directory / "trainer-credentials/token.jwt"
    attack = subprocess.run(
        [sys.executable, str(script), RUN, *swarm.addresses, "--token", str(token)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert attack.returncode == 0, attack.stderr[-2000:]
    gained = json.loads(attack.stdout.splitlines()[-1])
    assert gained == {
        "records": 0,
        "averagers": 0,
        "ping_answered": False,
        "stored": False,
        "replay_answered": False,
        "join_group": 0,
        "groups": 0,
        "aggregate_part": ["PROTOCOL_VIOLATION"],
        "state_messages": 0,
        "group": False,
    }
    trainer.wait_for_step(3)
    assert keeper.process.is_alive()
