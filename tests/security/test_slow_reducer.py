"""A reducer that answers slowly in each group that it joins.

It costs the swarm two rounds at most: then it reduces nothing, and nobody waits for it. Nobody is named, for a lost
line looks alike.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.security.member_swarm import INSIDER, TARGET, MemberSwarm, hold_one_state
from tests.support.waiting import wait_until

HONEST_MEMBERS = ("alice", "bob", "carol", "dave")
FIRST_STEPS = 2  # as usual, before the attack
LAST_STEPS = 2  # after it is noticed
MOST_LOST_ROUNDS = 2
MISSING = re.compile(rf"missing: {INSIDER} \(device .* returned not all averages")  # a round that it cost, in a log


def test_a_slow_reducer_costs_two_rounds(tmp_path: Path) -> None:
    """Then steps come as ever, of full batches and with equal parameters everywhere."""
    swarm = MemberSwarm(tmp_path, honest=HONEST_MEMBERS)
    try:
        for peer in [*swarm.honest, swarm.keeper]:
            peer.wait_for_step(FIRST_STEPS)
        swarm.insider.tell("slow")
        logs = [peer.log for peer in swarm.started]
        wait_until("it is missing", lambda: MISSING.search(swarm.keeper.log.read_text()), *logs)
        last = swarm.step + LAST_STEPS
        for peer in [*swarm.honest, swarm.keeper]:
            peer.wait_for_step(last)
        assert len(MISSING.findall(swarm.keeper.log.read_text())) <= MOST_LOST_ROUNDS
        for step in range(1, last + 1):
            assert hold_one_state(swarm.steps_at(step))
            sizes = [said["group_samples"] for said in swarm.steps_at(step) if said["group_samples"] is not None]
            assert min(sizes) >= TARGET
        assert swarm.all_named() == []
    finally:
        swarm.close()
