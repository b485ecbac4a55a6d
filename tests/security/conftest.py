"""Swarms that tests of attacks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.member_swarm import MemberSwarm


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberSwarm]:
    """One swarm for all attacks, after its first steps."""
    swarm = MemberSwarm(tmp_path_factory.mktemp("members"))
    swarm.honest[0].wait_for_step(2)
    yield swarm
    swarm.close()
