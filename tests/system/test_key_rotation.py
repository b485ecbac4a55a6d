"""A new authority key in a real DHT: nodes with old and new tokens take each other's requests, for a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from auth.keys import AuthorityKey
from auth.tokens import Handover, issue_handover
from peer.network.placement import Placement
from tests.support.swarm_nodes import NodeSwarm
from tests.system.swarm_node import RUN

OLD = AuthorityKey.generate()
HERE = Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",))


def successor(until: float) -> AuthorityKey:
    """A new key, and how long the old one counts beside it."""
    new = AuthorityKey.generate()
    handover = Handover(RUN, time.time(), OLD.public_bytes, new.public_bytes, until)
    return replace(new, handover=issue_handover(OLD, handover))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeSwarm]:
    with ExitStack() as stack:
        yield NodeSwarm(tmp_path, stack)


def test_old_and_new_meet_during_the_overlap(nodes: NodeSwarm) -> None:
    """A node that knows only the old key lets in a new one, which lets in an old one in its turn."""
    new = successor(until=time.time() + 3600)
    first = nodes.start("old", HERE, authority=OLD)
    second = nodes.start("new", HERE, first.addresses, authority=new)
    nodes.start("another-old", HERE, second.addresses, authority=OLD)


def test_after_the_overlap_the_old_key_is_over(nodes: NodeSwarm) -> None:
    """A node that knows the new key lets in its like, and nobody with a token of the old one."""
    new = successor(until=time.time() - 1)
    first = nodes.start("new", HERE, authority=new)
    nodes.start("another-new", HERE, first.addresses, authority=new)
    with pytest.raises(AssertionError, match="the node has ended"):
        nodes.start("old", HERE, first.addresses, authority=OLD)
