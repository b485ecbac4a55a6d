"""Honest members who are killed, differ, or whose gradients grow: steps come, and nobody is named.

What an honest peer says or does around a failure must look like no attack to any other. One swarm for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.security.member_peer import GROWS_AFTER
from tests.security.member_swarm import MemberSwarm, hold_one_state
from tests.support.peer_processes import Said
from tests.support.waiting import wait_until

CLOCKS = {"bob": 40.0, "carol": -40.0}  # seconds ahead; hivemind's nodes refuse each other beyond three
MEMBERS = ("bob", "carol", "dan")
STEPS = 4  # between two mishaps
STEPS_BESIDE_A_DOUBTER = 6
STEPS_APART = 3


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberSwarm]:
    """A keeper and four members, all of them honest; the clocks of two are wrong."""
    swarm = MemberSwarm(tmp_path_factory.mktemp("honest"), honest=MEMBERS, insiders=("alice",), clocks=CLOCKS)
    yield swarm
    swarm.close()


def go_on(honest: MemberSwarm, steps: int) -> None:
    """Everybody takes further steps, after which all hold one state and nobody has ever been named."""
    last = honest.step + steps
    for peer in [*honest.honest, honest.keeper]:
        peer.wait_for_step(last)
    assert hold_one_state(honest.steps_at(last))
    assert suspicions(honest) == []


def suspicions(honest: MemberSwarm) -> list[Said]:
    """Those of all processes, also of killed ones."""
    return [said for _, peer in honest.witnesses() for said in peer.said if said["event"] == "suspicion"]


def test_members_whose_clocks_are_wrong_take_part(honest: MemberSwarm) -> None:
    """They go by the coordinator's."""
    go_on(honest, STEPS_APART)


def test_a_keeper_that_believes_less_than_its_group_is_taken_along(honest: MemberSwarm) -> None:
    """It has seen a short round that the others have not: without it no step comes, and for it no batch is full."""
    honest.honest[0].wait_for_step(2)
    honest.keeper.tell("believes less")
    go_on(honest, STEPS_BESIDE_A_DOUBTER)
    honest.keeper.tell("nothing")


def test_kills_of_peers_keeper_and_daemon_name_nobody(honest: MemberSwarm) -> None:
    """A peer, the keeper and a peer's daemon are killed in the middle of it, and come back."""
    honest.start_again("dan")
    honest.honest[0].wait_for_step(honest.step + STEPS)
    honest.keeper.kill()
    honest.keeper = honest.start_keeper()
    honest.honest[0].wait_for_step(honest.step + STEPS)
    family = psutil.Process(honest.honest[1].process.pid).children(recursive=True)
    [daemon] = [process for process in family if process.name() == "p2pd"]
    daemon.kill()
    honest.start_again("carol")
    go_on(honest, STEPS)


def test_a_keeper_comes_back_to_members_who_hold_different_states(honest: MemberSwarm) -> None:
    """Two of four hold the same: the keeper takes theirs, and the others take the keeper's.

    The keeper is killed between two rounds: one that only half of the members completed would leave no majority. A
    member that is a step behind all the same stays there until then, and is none of the two.
    """
    members = [*honest.insiders, *honest.honest]
    wait_until("all are at one step", lambda: {peer.step for peer in members} == {max(2, honest.step)})
    honest.keeper.kill()
    beyond = honest.step + STEPS_APART
    logs = [peer.log for peer in honest.started]
    wait_until("two go on without the keeper", lambda: sum(peer.step >= beyond for peer in members) > 1, *logs)
    same = [peer for peer in members if peer.step >= beyond][:2]
    for peer in members:
        if peer not in same:
            peer.tell("another state")
    apart = honest.step + STEPS_APART
    same[1].wait_for_step(apart)
    honest.keeper = honest.start_keeper()
    back = honest.keeper.wait_for(lambda said: said["event"] == "step" and said["step"] >= apart)

    def agree() -> bool:
        steps = [honest.steps_at(step) for step in range(back["step"], honest.step + 1)]
        return any(len(said) == len(honest.honest) + 1 and hold_one_state(said) for said in steps)

    wait_until("all hold one state", agree, *[peer.log for peer in honest.started])
    assert suspicions(honest) == []


def test_gradients_that_grow_name_nobody(honest: MemberSwarm) -> None:
    """All at once they are a million times as large: averages that follow from them are no lies."""
    last_small = honest.step + STEPS_APART
    for peer in [*honest.insiders, *honest.honest]:
        peer.tell(f"{GROWS_AFTER}{last_small}")
        assert peer.wait_for_event("grows")["after"] == last_small
    go_on(honest, 2 * STEPS_APART)
