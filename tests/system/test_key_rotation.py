"""A new authority key in a real DHT: nodes with old and new tokens take each other's requests, for a time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, Handover, RevocationList, issue_handover, issue_revocations, issue_token
from tests.system.swarm_node import RUN, NodePlan

OLD = AuthorityKey.generate()


def successor(until: float) -> AuthorityKey:
    """A new key, and how long the old one counts beside it."""
    new = AuthorityKey.generate()
    handover = Handover(RUN, time.time(), OLD.public_bytes, new.public_bytes, until)
    return replace(new, handover=issue_handover(OLD, handover))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, stack)


class Nodes:
    """Starts nodes of members."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack

    def start(self, name: str, authority: AuthorityKey, initial_peers: list[str]) -> list[str]:
        """The addresses of a node whose token this key has signed; none if it was not let in."""
        host = ["/ip4/127.0.0.1/tcp/0"]
        plan = NodePlan(self._grant(name, authority), "direct", host, [], initial_peers, [])
        command = [sys.executable, "-m", "tests.system.swarm_node", json.dumps(asdict(plan))]
        log = self._stack.enter_context((self._directory / f"{name}.log").open("w"))
        process = self._stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        )
        self._stack.callback(process.communicate)  # ends its input
        assert process.stdout is not None
        said = process.stdout.readline()
        return list(json.loads(said)["addresses"]) if said else []

    def _grant(self, name: str, authority: AuthorityKey) -> str:
        credentials, now = Credentials(self._directory / name), time.time()
        key = credentials.device_key
        pseudonym = key.receipt_key(RUN).pseudonym
        token = AccessToken(
            name, name, key.peer_id, key.public_key.decode(), "trainer", RUN, now, now + 3600, pseudonym
        )
        revocations = issue_revocations(authority, RevocationList(RUN, 0, now, frozenset()))
        credentials.store_grant(RUN, authority.public_bytes, issue_token(authority, token), revocations)
        return str(credentials.directory)


def test_old_and_new_meet_during_the_overlap(nodes: Nodes) -> None:
    """A node that knows only the old key lets in a new one, which lets in an old one in its turn."""
    new = successor(until=time.time() + 3600)
    first = nodes.start("old", OLD, [])
    second = nodes.start("new", new, first)
    assert second
    assert nodes.start("another-old", OLD, second)


def test_after_the_overlap_the_old_key_is_over(nodes: Nodes) -> None:
    """A node that knows the new key lets in its like, and nobody with a token of the old one."""
    new = successor(until=time.time() - 1)
    first = nodes.start("new", new, [])
    assert nodes.start("another-new", new, first)
    assert nodes.start("old", OLD, first) == []
