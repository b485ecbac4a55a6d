"""Ports that are free, taken or impossible."""

from __future__ import annotations

import socket

import pytest

from auth.errors import ConfigError, PortTakenError
from coordinator.run.ports import Listener, announced, check_ports, free_ports, is_free, keeper_place
from coordinator.run.settings import Settings
from peer.network.endpoints import Transport, bindable, ways_from

HOST = "127.0.0.1"
HERE = "127.0.0.1"


def test_free_ports_are_different_and_free() -> None:
    """Each can be listened on, all at the same time."""
    ports = free_ports(HOST, 5)
    assert len(set(ports)) == 5
    check_ports(Listener(HOST, port, "a test", "nothing") for port in ports)


def test_free_ports_stay_free_until_they_are_used() -> None:
    """The operating system gives no other program such a port, neither to connect from nor because it asks for any."""
    with socket.create_server((HOST, 0)) as given:
        lowest_given = min(given.getsockname()[1], 32_768)
    assert all(1024 < port < lowest_given for port in free_ports(HOST, 5))


def test_taken_port_is_one_sentence_with_the_remedy() -> None:
    """Port, purpose and the setting to change are named."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(HOST, port)
        with pytest.raises(PortTakenError, match=rf"Port {port} on {HOST} \(the dashboard\) is taken.*`web_port`"):
            check_ports([Listener(HOST, port, "the dashboard", "`web_port`")])


def test_port_that_was_just_closed_is_free() -> None:
    """Connections that linger after their server has ended do not make its port taken."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection((HOST, port))
        accepted, _ = server.accept()
        accepted.close()  # this side closes first, and so waits
        client.close()
    assert is_free(HOST, port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_address_of_another_machine_is_a_configuration_error(host: str) -> None:
    """Not the port but the address is wrong, and the sentence says so."""
    with pytest.raises(ConfigError, match="bind_host"):
        check_ports([Listener(host, 1234, "the swarm", "`swarm_port`")])


@pytest.mark.parametrize(
    ("host", "prefix"), [("192.0.2.7", "/ip4/192.0.2.7"), ("2001:db8::1", "/ip6/2001:db8::1"), ("a.org", "/dns/a.org")]
)
def test_the_keeper_is_announced_where_peers_reach_it(host: str, prefix: str) -> None:
    """An address or a name becomes the right kind of multiaddress, for each transport."""
    assert announced([host], 31337, {"tcp", "udp"}) == (f"{prefix}/tcp/31337", f"{prefix}/udp/31337/quic-v1")
    assert announced([host], 31337, {"tcp"}) == (f"{prefix}/tcp/31337",)


@pytest.mark.parametrize(("quic", "transports"), [(False, ("tcp",)), (True, ("tcp", "udp"))])
@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])  # noqa: S104
def test_the_keeper_listens_over_every_version_that_the_machine_has(
    bind: str, quic: bool, transports: tuple[Transport, ...]
) -> None:
    """At the same port, by QUIC only if that is on; further hosts are announced too."""
    [port] = free_ports(HERE, 1)
    settings = Settings(
        public_host="192.0.2.7", announce_hosts=("2001:db8::1",), bind_host=bind, swarm_port=port, quic=quic
    )
    place = keeper_place(settings)
    assert place.bandwidth is None
    assert set(place.host_maddrs) == {way.maddr for way in bindable(ways_from(bind, port, transports))}
    assert place.announce_maddrs is not None
    assert f"/ip6/2001:db8::1/tcp/{port}" in place.announce_maddrs
    assert (f"/ip6/2001:db8::1/udp/{port}/quic-v1" in place.announce_maddrs) is quic


def test_the_keeper_knows_its_line_from_the_operator() -> None:
    """In bytes a second; it declares that to its groups, and keeps a share of it for them."""
    settings = Settings.model_validate({"bind_host": HERE, "swarm_port": free_ports(HERE, 1)[0], "line_mbit": 20})
    assert keeper_place(settings).bandwidth == 2.5e6


@pytest.mark.parametrize("bind", [HERE, "localhost"])
def test_one_address_stays_one(bind: str) -> None:
    """TCP and QUIC there, and nowhere else."""
    [port] = free_ports(HERE, 1)
    place = keeper_place(Settings(bind_host=bind, swarm_port=port, quic=True))
    assert len({maddr.split("/")[2] for maddr in place.host_maddrs}) == 1
    assert len(place.host_maddrs) == 2


def test_where_udp_is_refused_tcp_alone_is_announced() -> None:
    """Quietly, as before there was QUIC."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((HERE, 0))
        port = taken.getsockname()[1]
        place = keeper_place(Settings(bind_host=HERE, swarm_port=port, quic=True))
    assert place.host_maddrs == place.announce_maddrs == (f"/ip4/{HERE}/tcp/{port}",)
