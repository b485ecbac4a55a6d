"""Swarms that tests of attacks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.member_swarm import MemberSwarm


@pytest.fixture(scope="module")
def swarm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberSwarm]:
    """One swarm for all attacks of a file, after its first steps; `MORE_DEVICES` of the file are the insider's."""
    more_devices = getattr(request.module, "MORE_DEVICES", 0)
    swarm = MemberSwarm(tmp_path_factory.mktemp("members"), more_devices=more_devices)
    swarm.honest[0].wait_for_step(2)
    yield swarm
    swarm.close()
