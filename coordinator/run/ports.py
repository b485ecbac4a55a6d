"""The coordinator's ports: availability checks, free ports for a demo, the keeper's addresses.

The keeper's libp2p node listens on IPv4 and IPv6, with TCP and, if enabled, QUIC.
"""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from auth.errors import ConfigError, PortTakenError
from coordinator.run.settings import Settings
from peer.network.endpoints import IPAddress, Transport, bindable, ways_from
from peer.network.placement import Placement
from peer.network.traffic import BYTES_PER_S_OF_MBIT

# Ports below the ephemeral ranges of Linux, macOS and Windows.
CHOSEN_PORTS = range(20_000, 32_768)
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104  # listen on all addresses
_CHANCE = random.SystemRandom()  # unseeded, because processes with equal seeds must get different ports


@dataclass(frozen=True)
class Listener:
    """A port to listen on, and its names in messages."""

    host: str
    port: int
    purpose: str  # name used in messages, such as "the dashboard"
    setting: str  # setting named in messages, such as "`web_port` in my-run/settings.yaml"


def check_ports(listeners: Iterable[Listener]) -> None:
    """Raise `PortTakenError` if a port is in use or forbidden, `ConfigError` for an invalid address."""
    for listener in listeners:
        try:
            _bind(listener.host, listener.port).close()
        except OSError as error:
            raise _explain(listener, error) from error


def bound_socket(listener: Listener) -> socket.socket:
    """Return a socket bound to a listener's port (0 for any); raises the errors of `check_ports`.

    A wildcard host is bound for IPv6 and IPv4 if the machine supports both.
    """
    try:
        if listener.host in WILDCARDS and socket.has_dualstack_ipv6():
            return _bind("::", listener.port, dual_stack=True)
        return _bind("0.0.0.0" if listener.host == "::" else listener.host, listener.port)  # noqa: S104  # as configured
    except OSError as error:
        raise _explain(listener, error) from error


def is_free(host: str, port: int) -> bool:
    """Return whether a process can listen on this port now."""
    try:
        _bind(host, port).close()
    except OSError:
        return False
    return True


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` distinct free ports outside the operating system's ephemeral range."""
    free = (port for port in _CHANCE.sample(CHOSEN_PORTS, len(CHOSEN_PORTS)) if is_free(host, port))
    return list(islice(free, count))


def _bind(host: str, port: int, *, dual_stack: bool = False) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        # Ignore connections in TIME_WAIT, as servers do.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual_stack:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def _explain(listener: Listener, error: OSError) -> ConfigError | PortTakenError:
    where = f"Port {listener.port} on {listener.host} ({listener.purpose})"
    if error.errno == errno.EADDRINUSE:
        return PortTakenError(f"{where} is taken: stop the program that uses it, or change {listener.setting}.")
    if error.errno == errno.EACCES:
        return PortTakenError(f"{where} needs root's rights: change {listener.setting} to one above 1023.")
    return ConfigError(f"{where} cannot be listened on ({error.strerror}): check `bind_host`.")


def keeper_place(settings: Settings) -> Placement:
    """Return the addresses on which the keeper listens, those it announces, and its bandwidth.

    TCP on the IP version of `bind_host` is always included; if this machine lacks that version, the
    p2p daemon fails to start. Other combinations are included if this machine supports them.
    """
    port, host = settings.swarm_port, _address_of(settings.bind_host)
    asked = ways_from(str(host), port, ("tcp", "udp") if settings.quic else ("tcp",))
    listen = [way for way in asked if (way.version, way.transport) == (host.version, "tcp")]
    listen += [way for way in bindable(asked) if way not in listen]
    transports = {way.transport for way in listen}
    hosts = (settings.public_host, *settings.announce_hosts)
    return Placement(
        host_maddrs=tuple(way.maddr for way in listen),
        announce_maddrs=announced(hosts, port, transports),
        bandwidth=None if settings.line_mbit is None else settings.line_mbit * BYTES_PER_S_OF_MBIT,
    )


def announced(hosts: Sequence[str], port: int, transports: Collection[Transport]) -> tuple[str, ...]:
    """Return a multiaddress for each host and transport; a host name covers both IP versions."""
    endings = [f"tcp/{port}", *([f"udp/{port}/quic-v1"] if "udp" in transports else [])]
    return tuple(f"{_host_maddr(host)}/{ending}" for host in dict.fromkeys(hosts) for ending in endings)


def _address_of(host: str) -> IPAddress:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # `host` is a name, not an IP address
        return ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _host_maddr(host: str) -> str:
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}"
    except ValueError:
        return f"/dns/{host}"
