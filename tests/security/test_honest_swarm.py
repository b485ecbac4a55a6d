"""Forty steps among honest members whose processes are killed: nobody is named.

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
