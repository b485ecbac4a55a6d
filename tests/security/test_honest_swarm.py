"""Honest members whose processes are killed, or who believe less than others: steps come, and nobody is named.

What an honest peer says or does around a failure must look like no attack to any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.security.member_swarm import MemberSwarm, hold_one_state

STEPS = 40
MEMBERS = ("bob", "carol", "dan")
STEPS_BESIDE_A_DOUBTER = 6


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[MemberSwarm]:
    """A keeper and four members, all of them honest."""
    swarm = MemberSwarm(tmp_path, honest=MEMBERS, insiders=("alice",))
    yield swarm
    swarm.close()


def test_kills_of_peers_keeper_and_daemon_name_nobody(honest: MemberSwarm) -> None:
    """A peer, the keeper and a peer's daemon are killed in the middle of it, and come back."""
    honest.honest[0].wait_for_step(STEPS // 4)
    honest.start_again("dan")
    honest.honest[0].wait_for_step(STEPS // 2)
    honest.keeper.kill()
    honest.keeper = honest.start_keeper()
    honest.honest[0].wait_for_step(STEPS * 3 // 4)
    family = psutil.Process(honest.honest[1].process.pid).children(recursive=True)
    [daemon] = [process for process in family if process.name() == "p2pd"]
    daemon.kill()
    honest.start_again("carol")
    for peer in [*honest.honest, honest.keeper]:
        peer.wait_for_step(STEPS)
    assert [said for _, peer in honest.witnesses() for said in peer.said if said["event"] == "suspicion"] == []
    assert hold_one_state(honest.steps_at(STEPS))


def test_a_keeper_that_believes_less_than_its_group_is_taken_along(honest: MemberSwarm) -> None:
    """It has seen a short round that the others have not: without it no step comes, and for it no batch is full."""
    honest.honest[0].wait_for_step(2)
    honest.keeper.tell("believes less")
    last = honest.step + STEPS_BESIDE_A_DOUBTER
    honest.keeper.wait_for_step(last)
    assert hold_one_state(honest.steps_at(last))
    assert honest.all_named() == []
