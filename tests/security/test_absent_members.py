"""A member that joins each group and then is missing: as a reducer that stalls or refuses, or altogether.

Each costs the swarm two rounds at most: then it reduces nothing, and nobody waits for it. Nobody is named, for a lost
line looks alike. A swarm for each attack, of a keeper, four honest members and the insider, because whoever was missing
once is left out for some rounds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.member_swarm import INSIDER, TARGET, MemberSwarm, hold_one_state

HONEST_MEMBERS = ("alice", "bob", "carol", "dave")
FIRST_STEPS = 2  # as usual, before the attack
ATTACKED_STEPS = 4
MOST_LOST_ROUNDS = 2
LOST, MISSING = "the round failed", f"missing: {INSIDER} (device"  # in a log


@pytest.mark.parametrize("attack", ["stall", "refuse", "leave"])
def test_a_missing_member_costs_two_rounds(attack: str, tmp_path: Path) -> None:
    """Then steps come as ever, of full batches and with equal parameters everywhere."""
    swarm = MemberSwarm(tmp_path, honest=HONEST_MEMBERS)
    try:
        for peer in [*swarm.honest, swarm.keeper]:
            peer.wait_for_step(FIRST_STEPS)
        lost_before = swarm.keeper.log.read_text().count(LOST)
        swarm.insider.tell(attack)
        last = swarm.step + ATTACKED_STEPS
        for peer in [*swarm.honest, swarm.keeper]:
            peer.wait_for_step(last)
        log = swarm.keeper.log.read_text()
        assert MISSING in log
        assert log.count(LOST) - lost_before <= MOST_LOST_ROUNDS
        for step in range(1, last + 1):
            assert hold_one_state(swarm.steps_at(step))
            sizes = [said["group_samples"] for said in swarm.steps_at(step) if said["group_samples"] is not None]
            assert min(sizes) >= TARGET
        assert swarm.all_named() == []
    finally:
        swarm.close()
