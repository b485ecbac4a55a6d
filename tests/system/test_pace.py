"""Ways to average less, each in a real swarm: local steps; codes of gradients, PowerSGD's too.

One swarm changes between codes at some of its steps. Local steps are tried with rounds that are waited for, and beside
rounds. Each test trains some global steps of a few seconds with four or five peers.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from peer.averaging.requirements import LEAST_FILLED
from peer.progress.credit import HEADROOM
from tests.support.swarms import (
    LOSING,
    MICROBATCH,
    TARGET,
    Peer,
    SwarmFactory,
    begin_together,
    require_one_state,
)

LOCAL: dict[str, Any] = LOSING | {
    "optimizer": {"name": "adamw", "learning_rate": 0.003},
    "averaging": LOSING["averaging"]
    | {"compression": "8bit-blockwise", "target_batch_size": 2 * TARGET, "local_steps": 2 * TARGET // MICROBATCH // 2},
}
DELAYED_LOCAL: dict[str, Any] = LOCAL | {"averaging": LOCAL["averaging"] | {"delay": True}}
# From which steps on which code of gradients is in force; before the first the run file's, 16 bits.
CODES: list[dict[str, Any]] = [
    {"from_step": 3, "compression": "8bit-blockwise"},
    {"from_step": 6, "compression": "8bit-blockwise", "powersgd_rank": 4},
    {"from_step": 9},
]


@pytest.mark.parametrize("config", [LOCAL, DELAYED_LOCAL], ids=["waited for", "delayed"])
def test_local_steps_survive_what_happens_to_peers(swarm: SwarmFactory, config: dict[str, Any]) -> None:
    """With one peer in client mode, one killed within a step and one that joins late, all end with the same parameters.

    Each step has nearly its target's samples, and every one of them is some peer's. With delayed steps, some begin with
    samples that were computed beside the round before.
    """
    peers, outcomes = trained_by_others(swarm, config, middle=4, last=10, killed_after=2)
    complete = complete_steps(outcomes, 2 * TARGET)
    assert any(outcomes[2][step]["samples"] > 0 for step in complete if step in outcomes[2])  # in client mode
    ahead = any(outcome["begun_with"] > 0 for of_peer in outcomes[1:] for outcome in of_peer.values())
    assert ahead == config["averaging"].get("delay", False)
    states = [peer.stop() for peer in peers]
    require_one_state(states)
    assert all(torch.equal(state[name], states[0][name]) for state in states for name in states[0])


def test_the_code_of_gradients_changes_at_a_step_on_all_peers(swarm: SwarmFactory) -> None:
    """In 16 bits, in 8, as factors in 8, in 16 again, while one peer is killed and another joins: all have one state.

    A peer that joined later has moments that were rounded on their way, as ever.
    """
    config = LOSING | {"averaging": LOSING["averaging"] | {"compression": "float16"}}
    last = 12
    peers, outcomes = trained_by_others(swarm, config, middle=5, last=last, killed_after=3, changes=CODES)
    assert complete_steps(outcomes, TARGET)
    assert {step for step in outcomes[3] if step > 9}  # the late one took part in the last code, too
    for step in range(1, last + 1):
        sketches = [of_peer[step]["sketch"] for of_peer in outcomes[:3] if step in of_peer]
        assert sketches
        assert all(sketch == sketches[0] for sketch in sketches), f"step {step}"
    received = [[outcomes[0][step]["averaged_bytes"] for step in range(begin + 1, begin + 4)] for begin in (0, 3, 6, 9)]
    in_16, in_8, as_factors, in_16_again = received
    assert max(as_factors) < min(in_8) <= max(in_8) < min(in_16 + in_16_again)
    require_one_state([peer.stop() for peer in peers])


def trained_by_others(
    swarm: SwarmFactory, config: dict[str, Any], *, middle: int, last: int, killed_after: int, **keepers: Any
) -> tuple[list[Peer], list[dict[int, dict[str, Any]]]]:
    """Keeper, first, client and late, and their outcomes: one more was killed, and the late one came in the middle."""
    keeper = swarm.start_keeper(config=config, last_step=middle, **keepers)
    first = swarm.start("first", "trainer", config, seed=1, microbatch_s=0.25, last_step=0)
    client = swarm.start("client", "trainer", config, seed=2, microbatch_s=0.25, last_step=0, client_mode=True)
    victim = swarm.start("victim", "trainer", config, seed=3, microbatch_s=0.25, last_step=0)
    begin_together([first, client, victim], middle)
    victim.wait_for_step(killed_after)
    time.sleep(0.5)  # into the next step: the victim has accumulated something, or taken local steps, by now
    victim.kill()
    late = swarm.start("late", "trainer", config, seed=4, microbatch_s=0.25, last_step=middle)
    assert late.joined()["downloaded"]
    peers = [keeper, first, client, late]
    for peer in peers:  # nobody goes beyond the middle before the late one is there
        peer.go_on_to(last)
    return peers, [outcomes_until(peer, last) for peer in peers]


def complete_steps(outcomes: list[dict[int, dict[str, Any]]], target: int) -> list[int]:
    """The steps that all of their group have told of; every step has nearly its target's samples, and these are theirs.

    A weight above twice the batch, as after failed rounds, may have been cut to that.
    """
    complete = []
    for step in sorted({step for of_peer in outcomes for step in of_peer}):
        taken = [of_peer[step] for of_peer in outcomes if step in of_peer]
        assert {outcome["group_samples"] for outcome in taken} == {taken[0]["group_samples"]}
        assert taken[0]["group_samples"] >= LEAST_FILLED * target
        if len(taken) == taken[0]["group_size"]:
            samples = [int(outcome["samples"]) for outcome in taken]
            assert sum(min(own, HEADROOM * target) for own in samples) <= taken[0]["group_samples"] <= sum(samples)
            complete.append(step)
    return complete


def outcomes_until(peer: Peer, last: int) -> dict[int, dict[str, Any]]:
    """The steps that the peer has taken with others, by number, once it is at the last."""
    taken: dict[int, dict[str, Any]] = {}
    step = 0
    while step < last:
        said = peer.wait_for(lambda said: said["event"] == "step")
        step = said["step"]
        if said["averaged"]:
            taken[step] = said
    return taken
