"""Nodes of one swarm, each a process of its own (`tests/system/swarm_node.py`), here or on simulated hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from auth.keys import AuthorityKey
from peer.network.placement import Placement
from tests.support.tokens import admitted
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
        said = self.process.stdout.readline()
        assert said, "the node has ended"
        return json.loads(said)


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
        authority: AuthorityKey | None = None,
    ) -> NodeProcess:
        """A node at this place, of a process that first calls `enter`; `authority`: another than the swarm's."""
        credentials = admitted(self._directory / name, authority or self._authority, RUN)
        plan = NodePlan(
            str(credentials.directory),
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
