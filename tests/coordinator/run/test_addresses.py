"""Where the keeper listens, and what it announces."""

from __future__ import annotations

import socket

import pytest

from coordinator.run.addresses import announced, keeper_place
from coordinator.run.ports import free_ports
from coordinator.run.settings import Settings
from peer.network.endpoints import bindable, ways_from

HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "prefix"), [("192.0.2.7", "/ip4/192.0.2.7"), ("2001:db8::1", "/ip6/2001:db8::1"), ("a.org", "/dns/a.org")]
)
def test_the_keeper_is_announced_where_peers_reach_it(host: str, prefix: str) -> None:
    """An address or a name becomes the right kind of multiaddress, for each transport."""
    assert announced([host], 31337, {"tcp", "udp"}) == (f"{prefix}/tcp/31337", f"{prefix}/udp/31337/quic-v1")
    assert announced([host], 31337, {"tcp"}) == (f"{prefix}/tcp/31337",)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])  # noqa: S104
def test_the_keeper_listens_in_every_way_that_the_machine_has(bind: str) -> None:
    """At the same port, over both IP versions; further hosts are announced too."""
    [port] = free_ports(HERE, 1)
    settings = Settings(public_host="192.0.2.7", announce_hosts=("2001:db8::1",), bind_host=bind, swarm_port=port)
    place = keeper_place(settings)
    assert set(place.host_maddrs) == {way.maddr for way in bindable(ways_from(bind, port))}
    assert place.announce_maddrs is not None
    assert f"/ip6/2001:db8::1/udp/{port}/quic-v1" in place.announce_maddrs


@pytest.mark.parametrize("bind", [HERE, "localhost"])
def test_one_address_stays_one(bind: str) -> None:
    """TCP and QUIC there, and nowhere else."""
    [port] = free_ports(HERE, 1)
    place = keeper_place(Settings(bind_host=bind, swarm_port=port))
    assert len({maddr.split("/")[2] for maddr in place.host_maddrs}) == 1
    assert len(place.host_maddrs) == 2


def test_where_udp_is_refused_tcp_alone_is_announced() -> None:
    """Quietly, as before there was QUIC."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HERE, 0))
        port = taken.getsockname()[1]
        place = keeper_place(Settings(bind_host=HERE, swarm_port=port))
    assert place.host_maddrs == place.announce_maddrs == (f"/ip4/{HERE}/tcp/{port}",)
