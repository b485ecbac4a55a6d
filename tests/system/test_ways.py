"""The swarm's nodes on hosts with IPv4, with IPv6 only, without TCP, and behind a router; real p2p daemons each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, RevocationList, issue_revocations, issue_token
from benchmarks._network import Host, HostPlan, Network, why_impossible
from coordinator.run.ports import announced
from peer.network.endpoints import ways_from
from peer.network.placement import Reach
from tests.system.swarm_node import RUN, NodePlan

PORT = 31337
EVERYWHERE = [way.maddr for way in ways_from("0.0.0.0", PORT)]  # noqa: S104
HOSTS = (
    HostPlan("hub", 100, versions=(4, 6)),
    HostPlan("direct", 100, versions=(4, 6)),
    HostPlan("v6", 100, versions=(6,)),
    HostPlan("notcp", 100, "no-tcp"),
    HostPlan("router", 100, "nat"),
)


class Node:
    """A running node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        told = self._hear()
        self.addresses: list[str] = told["addresses"]
        self.is_client: bool = told["is_client"]

    def connects(self, maddr: str) -> bool:
        """Whether it can connect to this address."""
        assert self.process.stdin is not None
        print(maddr, file=self.process.stdin, flush=True)
        return bool(self._hear())

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class Swarm:
    """Starts nodes of one run."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack, self._authority = directory, stack, AuthorityKey.generate()

    def start(self, host: Host, name: str, reach: Reach, initial: Sequence[str], relays: Sequence[str] = ()) -> Node:
        """A node on that host, which announces all of its addresses if it is direct."""
        hosts = [address for address in (host.address, host.address_v6) if address]
        announce = announced(hosts, PORT, {"tcp", "udp"}) if reach == "direct" else ()
        credentials = _member(self._directory / name, self._authority)
        plan = NodePlan(credentials, reach, EVERYWHERE, list(announce), list(initial), list(relays))
        return Node(self._stack.enter_context(_process(host, plan)))


@contextmanager
def _process(host: Host, plan: NodePlan) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.system.swarm_node", json.dumps(asdict(plan))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, preexec_fn=host.enter) as process:
        try:
            yield process
        finally:
            process.communicate()  # ends its input


def _member(directory: Path, authority: AuthorityKey) -> str:
    credentials, now = Credentials(directory), time.time()
    key, name = credentials.device_key, directory.name
    token = AccessToken(name, name, key.peer_id, key.public_key.decode(), "trainer", RUN, now, now + 3600)
    revocations = issue_revocations(authority, RevocationList(RUN, 0, now, frozenset()))
    credentials.store_grant(RUN, authority.public_bytes, issue_token(authority, token), revocations)
    return str(directory)


@pytest.mark.skipif(bool(why_impossible()), reason=f"hosts cannot be made here: {why_impossible()}")
def test_nodes_meet_over_whatever_they_have(tmp_path: Path) -> None:
    """IPv6 alone, QUIC alone, and a router: each joins; who is behind the router is reached through a volunteer."""
    with Network(HOSTS) as hosts, ExitStack() as stack:
        swarm = Swarm(tmp_path, stack)
        keeper = swarm.start(hosts["hub"], "keeper", "direct", ())
        assert {tuple(maddr.split("/")[1:4:2]) for maddr in keeper.addresses} == {
            ("ip4", "tcp"),
            ("ip4", "udp"),
            ("ip6", "tcp"),
            ("ip6", "udp"),
        }
        direct = swarm.start(hosts["direct"], "direct", "direct", keeper.addresses)
        relay = direct.addresses[0]
        hidden = swarm.start(hosts["router"], "hidden", "relayed", keeper.addresses, [relay])
        v6 = swarm.start(hosts["v6"], "v6", "direct", keeper.addresses)
        quic = swarm.start(hosts["notcp"], "quic", "direct", keeper.addresses)
        assert not hidden.is_client
        assert direct.connects(next(maddr for maddr in v6.addresses if "/tcp/" in maddr))
        assert direct.connects(next(maddr for maddr in quic.addresses if "/quic-v1/" in maddr))
        through = [maddr for maddr in hidden.addresses if maddr.startswith(relay.partition("/p2p/")[0])]
        over_v6 = next(maddr for maddr in direct.addresses if maddr.startswith("/ip6/") and "/tcp/" in maddr)
        assert through
        assert v6.connects(f"{over_v6}/p2p-circuit/p2p/{hidden.addresses[0].rpartition('/p2p/')[2]}")


@pytest.mark.skipif(bool(why_impossible()), reason=f"hosts cannot be made here: {why_impossible()}")
def test_a_volunteers_relay_that_is_gone_cuts_nobody_off(tmp_path: Path) -> None:
    """The keeper's is taken alone then."""
    gone = "/ip4/45.77.0.2/tcp/9/p2p/12D3KooWKaFFZoDcaeoXcKKtGG79gpXfkDnuMKKy8wSkXiy3gTBu"
    plans = [HostPlan("hub", 100), HostPlan("other", 100), HostPlan("router", 100, "nat")]
    with Network(plans) as hosts, ExitStack() as stack:
        swarm = Swarm(tmp_path, stack)
        keeper = swarm.start(hosts["hub"], "keeper", "direct", ())
        hidden = swarm.start(hosts["router"], "hidden", "relayed", keeper.addresses, [gone])
        assert not hidden.is_client
        assert any("p2p-circuit" in maddr for maddr in hidden.addresses)
