"""Stages on the way to the coordinator: its name, a TCP connection, what stands between (a proxy, a VPN)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping

import psutil

from peer.doctor.context import Context
from peer.doctor.findings import Outcome, failed, ok, warning

MAX_ADDRESSES = 6  # of a name that are tried
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
TUNNELS = ("tun", "tap", "utun", "wg", "ppp", "ipsec", "tailscale", "zt", "nordlynx", "proton", "cscotun", "vpn")
DROPPED = "no answer"


async def check_names(context: Context) -> Outcome:
    """The link's host has addresses."""
    link, loop = context.link, asyncio.get_running_loop()
    resolving = loop.getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(resolving, context.timing.connect_s)
    except asyncio.TimeoutError:
        return failed(f"No name server answers for `{link.host}`.", "Check this machine's connection and its DNS.")
    except OSError as error:  # gaierror among them
        reason = error.strerror or str(error)
        remedy = "Check the link's host, and this machine's connection and DNS."
        return failed(f"`{link.host}` has no address ({reason}).", remedy)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))[:MAX_ADDRESSES]
    context.addresses = tuple(addresses)
    kinds = {"IPv6" if ":" in address else "IPv4" for address in addresses}
    listed = ", ".join(addresses)
    return ok(f"`{link.host}` is {listed} ({' and '.join(sorted(kinds))}).", addresses=addresses)


async def check_tcp(context: Context) -> Outcome:
    """The coordinator's port accepts connections, at each address of its name."""
    port, timeout_s = context.link.port, context.timing.connect_s
    tries = [_try_connection(address, port, timeout_s) for address in context.addresses]
    reasons = dict(zip(context.addresses, await asyncio.gather(*tries), strict=True))
    context.reached = tuple(address for address, reason in reasons.items() if reason is None)
    return judge_connections(reasons, port)


def judge_connections(reasons: Mapping[str, str | None], port: int) -> Outcome:
    """What it means that connections failed for these reasons (None: it did not)."""
    failures = {address: reason for address, reason in reasons.items() if reason is not None}
    reached = [address for address in reasons if address not in failures]
    data = {"port": port, "reached": reached, "failures": failures}
    if not failures:
        return ok(f"Port {port} accepts connections at {', '.join(reached)}.", **data)
    told = ", ".join(f"{address} ({reason})" for address, reason in failures.items())
    if not reached:
        return failed(f"No connection to port {port}: {told}.", _remedy(next(iter(failures.values())), port), **data)
    remedy = "It works by the other address; tell the operator if it stays so."
    return warning(f"Port {port} accepts connections at {', '.join(reached)}, but not at {told}.", remedy, **data)


def _remedy(reason: str, port: int) -> str:
    if reason == DROPPED:
        return f"A firewall drops them: allow outgoing TCP to port {port}, or try another network."
    if reason == _reason(errno.ECONNREFUSED):
        return "Nothing listens there: ask the operator whether the coordinator is running and the link is current."
    return "Check this machine's connection to the internet."


async def _try_connection(address: str, port: int, timeout_s: float) -> str | None:
    """Why no TCP connection came about; None if one did."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), timeout_s)
    except asyncio.TimeoutError:
        return DROPPED
    except OSError as error:
        return DROPPED if error.errno == errno.ETIMEDOUT else _reason(error.errno)
    writer.transport.abort()
    return None


def _reason(number: int | None) -> str:
    return os.strerror(number).lower() if number else "no reason given"


async def check_proxy(context: Context) -> Outcome:
    """Whether the environment asks for a proxy, which manyhands does not use. Its value may hold a password."""
    names = sorted(name for name, value in context.environ.items() if value and name.lower() in PROXY_VARIABLES)
    if not names:
        return ok("The environment names no proxy.", variables=[])
    listed = ", ".join(f"`{name}`" for name in names)
    if context.reached:
        return ok(f"{listed} is set; manyhands connects directly, which works here.", variables=names)
    return warning(
        f"{listed} is set, but manyhands connects directly.",
        "If this network lets nothing out but through the proxy, join from another one.",
        variables=names,
    )


async def check_route(context: Context) -> Outcome:
    """Which of this machine's interfaces leads to the coordinator."""
    local_address = _local_address_towards(context.reached[0], context.link.port)
    return judge_route(local_address, _interface_of(local_address))


def judge_route(local_address: str, interface: str | None) -> Outcome:
    """What it means that connections go out there."""
    data = {"interface": interface, "local_address": local_address}
    if interface is not None and interface.lower().startswith(TUNNELS):
        remedy = "Leave it while you train if you may: it costs speed and hides this machine from other peers."
        return warning(f"Connections go through `{interface}`, which looks like a VPN.", remedy, **data)
    return ok(f"Connections go through {interface or 'an unknown interface'} ({local_address}).", **data)


def _local_address_towards(address: str, port: int) -> str:
    """The address that the system chooses for connections to `address`; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as chooser:
        chooser.connect((address, port))
        return str(chooser.getsockname()[0])


def _interface_of(address: str) -> str | None:
    for interface, found in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in found):
            return interface
    return None
