"""Members who do more than their role allows: the program of a trainer with an auxiliary peer's or an observer's token.

Each starts a swarm of its own, as in `test_course.py`. In plain hivemind nobody has a role.
"""

from __future__ import annotations

from pathlib import Path

from tests.security.member_swarm import INSIDER, MemberSwarm, require_health

STEPS = 4


def steps_with(swarm: MemberSwarm) -> str:
    """What the honest peers' logs say after some steps, all of them sound."""
    for peer in swarm.honest:
        peer.wait_for_step(STEPS)
    require_health(swarm, STEPS)
    assert not any(said["samples"] for said in swarm.insider.said if said["event"] == "step" and said["averaged"])
    return "".join(peer.log.read_text() for peer in [*swarm.honest, swarm.keeper])


def test_an_auxiliary_peers_gradients_are_in_no_average(tmp_path: Path) -> None:
    """It may reduce for others; gradients with a weight ban it from the round, and the log says whose they were."""
    swarm = MemberSwarm(tmp_path, insider_role="auxiliary")
    try:
        log = steps_with(swarm)
    finally:
        swarm.close()
    assert f"suspicious: {INSIDER} (device" in log
    assert "auxiliary), peer" in log


def test_an_observer_is_in_no_group(tmp_path: Path) -> None:
    """It may read the state; the honest members' steps are made without it."""
    swarm = MemberSwarm(tmp_path, insider_role="observer")
    try:
        steps_with(swarm)
        groups = [said for step in range(1, STEPS + 1) for said in swarm.steps_at(step) if said["averaged"]]
    finally:
        swarm.close()
    assert groups
