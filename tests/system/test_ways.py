"""The swarm's nodes on hosts with IPv4, with IPv6 only, without TCP, and behind a router; real p2p daemons each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.support.network import Host, HostPlan, Network, why_impossible
from coordinator.run.ports import announced
from peer.network.endpoints import ways_from
from peer.network.placement import Placement, Reach
from tests.support.swarm_nodes import NodeProcess, NodeSwarm

PORT = 31337
EVERYWHERE = tuple(way.maddr for way in ways_from("0.0.0.0", PORT, ("tcp", "udp")))  # noqa: S104
HOSTS = (
    HostPlan("hub", 100, versions=(4, 6)),
    HostPlan("direct", 100, versions=(4, 6)),
    HostPlan("v6", 100, versions=(6,)),
    HostPlan("notcp", 100, "no-tcp"),
    HostPlan("router", 100, "nat"),
)


def start(
    swarm: NodeSwarm, host: Host, name: str, reach: Reach, initial: Sequence[str], relays: Sequence[str] = ()
) -> NodeProcess:
    """A node on that host, which announces all of its addresses if it is direct."""
    hosts = [address for address in (host.address, host.address_v6) if address]
    announce = announced(hosts, PORT, {"tcp", "udp"}) if reach == "direct" else None
    return swarm.start(name, Placement(reach, EVERYWHERE, announce), initial, relays, host.enter)


@pytest.mark.skipif(bool(why_impossible()), reason=f"hosts cannot be made here: {why_impossible()}")
def test_nodes_meet_over_whatever_they_have(tmp_path: Path) -> None:
    """IPv6 alone, QUIC alone, and a router: each joins; who is behind the router is reached through a volunteer."""
    with Network(HOSTS) as hosts, ExitStack() as stack:
        swarm = NodeSwarm(tmp_path, stack)
        keeper = start(swarm, hosts["hub"], "keeper", "direct", ())
        assert {tuple(maddr.split("/")[1:4:2]) for maddr in keeper.addresses} == {
            ("ip4", "tcp"),
            ("ip4", "udp"),
            ("ip6", "tcp"),
            ("ip6", "udp"),
        }
        direct = start(swarm, hosts["direct"], "direct", "direct", keeper.addresses)
        relay = direct.addresses[0]
        hidden = start(swarm, hosts["router"], "hidden", "relayed", keeper.addresses, [relay])
        v6 = start(swarm, hosts["v6"], "v6", "direct", keeper.addresses)
        quic = start(swarm, hosts["notcp"], "quic", "direct", keeper.addresses)
        assert not hidden.is_client
        assert direct.connects(next(maddr for maddr in v6.addresses if "/tcp/" in maddr))
        assert direct.connects(next(maddr for maddr in quic.addresses if "/quic-v1/" in maddr))
        through = [maddr for maddr in hidden.addresses if maddr.startswith(relay.partition("/p2p/")[0])]
        over_v6 = next(maddr for maddr in direct.addresses if maddr.startswith("/ip6/") and "/tcp/" in maddr)
        assert through
        assert v6.connects(f"{over_v6}/p2p-circuit/p2p/{hidden.peer_id}")
        for one, other in ((direct, v6), (v6, hidden), (direct, quic), (hidden, direct), (quic, hidden)):
            one.finds_soon(other)


@pytest.mark.skipif(bool(why_impossible()), reason=f"hosts cannot be made here: {why_impossible()}")
def test_a_volunteers_relay_that_is_gone_cuts_nobody_off(tmp_path: Path) -> None:
    """The keeper's is taken alone then."""
    gone = "/ip4/45.77.0.2/tcp/9/p2p/12D3KooWKaFFZoDcaeoXcKKtGG79gpXfkDnuMKKy8wSkXiy3gTBu"
    plans = [HostPlan("hub", 100), HostPlan("other", 100), HostPlan("router", 100, "nat")]
    with Network(plans) as hosts, ExitStack() as stack:
        swarm = NodeSwarm(tmp_path, stack)
        keeper = start(swarm, hosts["hub"], "keeper", "direct", ())
        hidden = start(swarm, hosts["router"], "hidden", "relayed", keeper.addresses, [gone])
        assert not hidden.is_client
        assert any("p2p-circuit" in maddr for maddr in hidden.addresses)
