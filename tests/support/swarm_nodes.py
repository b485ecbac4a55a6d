"""Nodes of one swarm, each a process of its own (`tests/system/swarm_node.py`), here or on simulated hosts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, RevocationList, issue_revocations, issue_token
from peer.network.placement import Placement
from tests.support.waiting import wait_until
from tests.system.swarm_node import RUN, NodePlan


class NodeProcess:
    """A running node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        told = self._hear()
        self.addresses: list[str] = told["addresses"]
        self.is_client: bool = told["is_client"]
        self.peer_id: str = told["peer_id"]

    def connects(self, maddr: str) -> bool:
        """Whether it can connect to this address."""
        return bool(self._ask(maddr))

    def finds(self, other: NodeProcess) -> bool:
        """Whether its call finds another, wherever that one is."""
        return bool(self._ask(other.peer_id))

    def finds_soon(self, other: NodeProcess) -> None:
        """Wait until its call finds another."""
        wait_until(f"{self.peer_id} finds {other.peer_id}", lambda: self.finds(other), poll_s=0.5)

    def leave(self) -> None:
        """End the process, and with it the node."""
        self.process.communicate()

    def _ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self._hear()

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class NodeSwarm:
    """Starts nodes of one run."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack, self._authority = directory, stack, AuthorityKey.generate()

    def start(
        self,
        name: str,
        place: Placement,
        initial: Sequence[str] = (),
        relays: Sequence[str] = (),
        enter: Callable[[], object] | None = None,
    ) -> NodeProcess:
        """A node at this place, of a process that first calls `enter`."""
        plan = NodePlan(
            _member(self._directory / name, self._authority),
            place.reach,
            list(place.host_maddrs),
            list(place.announce_maddrs or ()),
            list(initial),
            list(relays),
        )
        return NodeProcess(self._stack.enter_context(_process(plan, enter)))


@contextmanager
def _process(plan: NodePlan, enter: Callable[[], object] | None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.system.swarm_node", json.dumps(asdict(plan))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, preexec_fn=enter) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.communicate()  # ends its input


def _member(directory: Path, authority: AuthorityKey) -> str:
    credentials, now = Credentials(directory), time.time()
    key, name = credentials.device_key, directory.name
    pseudonym = key.receipt_key(RUN).pseudonym
    token = AccessToken(name, name, key.peer_id, key.public_key.decode(), "trainer", RUN, now, now + 3600, pseudonym)
    revocations = issue_revocations(authority, RevocationList(RUN, 0, now, frozenset()))
    credentials.store_grant(RUN, authority.public_bytes, issue_token(authority, token), revocations)
    return str(directory)
