"""Addresses at which the keeper's libp2p node listens and peers reach it: over IPv4 and IPv6, by TCP and by QUIC."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence

from coordinator.run.settings import Settings
from peer.network.endpoints import IPAddress, Transport, bindable, ways_from
from peer.network.placement import Placement


def keeper_place(settings: Settings) -> Placement:
    """The keeper's place: it listens in every way that this machine has, and announces the transports it listens by.

    TCP over the version that `bind_host` names is always among them: if that fails, the p2p daemon says why.
    """
    port, host = settings.swarm_port, _address_of(settings.bind_host)
    asked = ways_from(str(host), port)
    listen = [way for way in asked if (way.version, way.transport) == (host.version, "tcp")]
    listen += [way for way in bindable(asked) if way not in listen]
    transports = {way.transport for way in listen}
    hosts = (settings.public_host, *settings.announce_hosts)
    return Placement(host_maddrs=tuple(way.maddr for way in listen), announce_maddrs=announced(hosts, port, transports))


def announced(hosts: Sequence[str], port: int, transports: Collection[Transport]) -> tuple[str, ...]:
    """Addresses for peers: each host by each transport. A name stands for its addresses of both IP versions."""
    endings = [f"tcp/{port}", *([f"udp/{port}/quic-v1"] if "udp" in transports else [])]
    return tuple(f"{_host_maddr(host)}/{ending}" for host in dict.fromkeys(hosts) for ending in endings)


def _address_of(host: str) -> IPAddress:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name of this machine
        return ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _host_maddr(host: str) -> str:
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}"
    except ValueError:
        return f"/dns/{host}"
