"""Ports that are free, taken or impossible."""

from __future__ import annotations

import socket

import pytest

from auth.errors import ConfigError, PortTakenError
from coordinator.run.ports import Listener, check_ports, free_ports, is_free

HOST = "127.0.0.1"


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
