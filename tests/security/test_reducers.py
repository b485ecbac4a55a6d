"""A member that claims the fattest line and returns false averages: it is named.

It reduces nothing any more, and nobody honest is named, whatever it shows of others after a round. A swarm for each
attack, of a keeper, two honest members with slow lines and the insider, because whoever was caught once is left out of
the reduction for an hour: that makes it longer than a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from peer.averaging.declarations import MAX_BANDWIDTH
from peer.averaging.requirements import LEAST_FILLED
from tests.security.member_swarm import HONEST, INSIDER, TARGET, MemberSwarm, clean_losses, hold_one_state
from tests.support.waiting import wait_until

ATTACKED_STEPS = 4
MOST_STEPS = 12  # by then whoever falsifies half of everything is named
MARGIN = 0.5  # of what a clean run has learnt by the last step: some steps were false ones
SLOW = 1.25e6  # bytes per second


@pytest.fixture
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberSwarm]:
    """After its first step."""
    lines = {INSIDER: MAX_BANDWIDTH, **dict.fromkeys(HONEST, SLOW)}
    swarm = MemberSwarm(tmp_path_factory.mktemp("reducers"), lines)
    swarm.honest[0].wait_for_step(1)
    yield swarm
    swarm.close()


def attack_until_named(swarm: MemberSwarm, attack: str, kind: str) -> int:
    """Let the insider falsify what it reduces until honest peers have named it so; returns the step where it began."""
    began = swarm.step
    swarm.insider.tell(attack)
    wait_until("somebody is named", lambda: swarm.named(kind), *[peer.log for peer in swarm.started], poll_s=0.1)
    named = swarm.named(kind)
    assert {said["member"] for said in named} == {INSIDER}
    assert min(said["step"] for said in named) <= began + MOST_STEPS
    return began


def go_on(swarm: MemberSwarm) -> int:
    """Further steps, with the attack going on; returns the last."""
    last = swarm.step + ATTACKED_STEPS
    for peer in [*swarm.honest, swarm.keeper]:
        peer.wait_for_step(last)
    return last


def require_learning(swarm: MemberSwarm, last: int) -> None:
    """Honest peers hold finite parameters and have learnt about as much as a clean run."""
    losses = clean_losses(last)
    for said in swarm.steps_at(last):
        assert math.isfinite(said["loss"])
        assert said["loss"] <= losses[last] + MARGIN * (losses[0] - losses[last])


@pytest.mark.parametrize(("attack", "kind"), [("flipped", "reduction"), ("frames", "shown")])
def test_a_member_that_lies_about_averages_parts_nobody_and_is_named(
    swarm: MemberSwarm, attack: str, kind: str
) -> None:
    """All honest peers go on with equal parameters while the attack does, in vain, and none of them is named."""
    began = attack_until_named(swarm, attack, kind)
    last = go_on(swarm)
    for step in range(began, last + 1):
        assert hold_one_state(swarm.steps_at(step))
        filled = [said["group_samples"] for said in swarm.steps_at(step) if said["group_samples"] is not None]
        assert min(filled, default=TARGET) >= LEAST_FILLED * TARGET
    require_learning(swarm, last)
    assert {said["member"] for said in swarm.all_named()} == {INSIDER}


@pytest.mark.parametrize(("attack", "kind"), [("unlike", "average"), ("two accounts", "reduction")])
def test_who_is_given_other_averages_comes_back_to_the_others(swarm: MemberSwarm, attack: str, kind: str) -> None:
    """The insider is named, whether it attests the same to all or not; when it stops all hold one state again."""
    attack_until_named(swarm, attack, kind)
    swarm.insider.tell("nothing")
    last = go_on(swarm)
    final = [
        [said for said in peer.said if said["event"] == "step" and said["step"] == last][-1:] for peer in swarm.honest
    ]
    kept = [said for said in swarm.keeper.said if said["event"] == "step" and said["step"] == last][-1]
    assert hold_one_state([kept, *(said for found in final for said in found)])
    require_learning(swarm, last)
    assert {said["member"] for said in swarm.all_named()} == {INSIDER}
