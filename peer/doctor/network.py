"""Stages on the way to the coordinator: its names, a TCP connection, what stands between (a proxy, a VPN)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping

import psutil

from auth.join_link import Address, JoinLink
from peer.doctor.context import Context
from peer.doctor.findings import Outcome, failed, ok, warning

MAX_ADDRESSES = 6  # of a name that are tried
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
TUNNELS = ("tun", "tap", "utun", "wg", "ppp", "ipsec", "tailscale", "zt", "nordlynx", "proton", "cscotun", "vpn")
DROPPED = "no answer"


async def check_names(context: Context) -> Outcome:
    """The link's hosts have addresses; one of them is enough."""
    links = context.link.each()
    found = await asyncio.gather(*(_addresses_of(link, context.timing.connect_s) for link in links))
    for link, (addresses, _) in zip(links, found, strict=True):
        context.addresses |= dict.fromkeys(addresses, link)
    sentence = " ".join(dict.fromkeys(told for _, told in found))  # several ports of a host make it once
    if not context.addresses:
        return failed(sentence, "Check the link's hosts, and this machine's connection and DNS.")
    hosts = [*dict.fromkeys(address.host for address in context.addresses)]
    if not all(addresses for addresses, _ in found):
        return warning(sentence, "It may work by the other address.", addresses=hosts)
    return ok(sentence, addresses=hosts)


async def _addresses_of(link: JoinLink, timeout_s: float) -> tuple[list[Address], str]:
    """What the host of a link's first address is, and a sentence that says so, or why that is not known."""
    resolving = asyncio.get_running_loop().getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(resolving, timeout_s)
    except asyncio.TimeoutError:
        return [], f"No name server answers for `{link.host}`."
    except (OSError, UnicodeError) as error:  # gaierror, and a name that cannot be one
        return [], f"`{link.host}` has no address ({getattr(error, 'strerror', None) or error})."
    hosts = [*dict.fromkeys(str(entry[0]) for *_, entry in found)][:MAX_ADDRESSES]
    kinds = sorted({"IPv6" if ":" in host else "IPv4" for host in hosts})
    return [Address(host, link.port) for host in hosts], f"`{link.host}` is {', '.join(hosts)} ({' and '.join(kinds)})."


async def check_tcp(context: Context) -> Outcome:
    """The coordinator's port accepts connections, at each of its addresses."""
    tries = [_try_connection(address, context.timing.connect_s) for address in context.addresses]
    reasons = dict(zip(context.addresses, await asyncio.gather(*tries), strict=True))
    context.reached = tuple(address for address, reason in reasons.items() if reason is None)
    return judge_connections(reasons)


def judge_connections(reasons: Mapping[Address, str | None]) -> Outcome:
    """What it means that connections failed for these reasons (None: it did not)."""
    failures = {address: reason for address, reason in reasons.items() if reason is not None}
    reached = [str(address) for address in reasons if address not in failures]
    data = {"reached": reached, "failures": {str(address): reason for address, reason in failures.items()}}
    if not failures:
        return ok(f"Connections are accepted at {', '.join(reached)}.", **data)
    told = ", ".join(f"{address} ({reason})" for address, reason in failures.items())
    if not reached:
        first = next(iter(failures))
        return failed(f"No connection comes about: {told}.", _remedy(failures[first], first.port), **data)
    remedy = "It works by the other address; tell the operator if it stays so."
    return warning(f"Connections are accepted at {', '.join(reached)}, but not at {told}.", remedy, **data)


def _remedy(reason: str, port: int) -> str:
    if reason == DROPPED:
        return f"A firewall drops them: allow outgoing TCP to port {port}, or try another network."
    if reason == _reason(errno.ECONNREFUSED):
        return "Nothing listens there: ask the operator whether the coordinator is running and the link is current."
    return "Check this machine's connection to the internet."


async def _try_connection(address: Address, timeout_s: float) -> str | None:
    """Why no TCP connection came about; None if one did."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*address), timeout_s)
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
    local_address = _local_address_towards(context.reached[0])
    return judge_route(local_address, _interface_of(local_address))


def judge_route(local_address: str, interface: str | None) -> Outcome:
    """What it means that connections go out there."""
    data = {"interface": interface, "local_address": local_address}
    if interface is not None and interface.lower().startswith(TUNNELS):
        remedy = "Leave it while you train if you may: it costs speed and hides this machine from other peers."
        return warning(f"Connections go through `{interface}`, which looks like a VPN.", remedy, **data)
    return ok(f"Connections go through {interface or 'an unknown interface'} ({local_address}).", **data)


def _local_address_towards(address: Address) -> str:
    """The address that the system chooses for connections to `address`; nothing is sent."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as chooser:
        chooser.connect(tuple(address))
        return str(chooser.getsockname()[0])


def _interface_of(address: str) -> str | None:
    for interface, found in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in found):
            return interface
    return None
