"""Stage `reachability`: whether other peers can open connections to this machine, and what stands before it if not.

Tried, not guessed: the coordinator dials the address that it sees, at a port where this machine listens.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from enum import Enum

from auth.errors import ManyhandsError
from peer.dial_back import dialled_ways, listening, own_addresses
from peer.doctor.context import Context
from peer.doctor.findings import Outcome, failed, ok, skipped, warning
from peer.ways import TRANSPORTS, Endpoint, IPAddress, everywhere, read_endpoint

CARRIER_NETWORK = ipaddress.ip_network("100.64.0.0/10")


class Position(str, Enum):
    """Where a machine stands, seen from the coordinator."""

    OPEN = "open"  # its own address, incoming connections arrive
    FIREWALL = "firewall"  # its own address, incoming connections do not arrive
    FORWARDED = "forwarded port"  # behind a router that lets connections to this port through
    NAT = "NAT"  # behind a router that does not
    CARRIER_NAT = "carrier-grade NAT"  # behind the provider's router, where nobody can forward a port


async def check_reachability(context: Context) -> Outcome:
    """Listen where the peer would, and let the coordinator dial, over the IP version by which it sees this machine."""
    assert context.client is not None
    assert context.description is not None
    observed = context.description.observed_address
    asked = [read_endpoint(maddr) for maddr in context.options.listen]
    endpoints = [endpoint for endpoint in asked or everywhere() if endpoint is not None]
    async with listening(endpoints) as ears:
        if endpoints and not ears.endpoints:
            return _not_bound(endpoints[0])
        tried = ears.first(observed.version, "tcp") or ears.first(observed.version, "udp")
        if tried is None:
            return skipped(
                f"This machine does not listen over IPv{observed.version}, by which the coordinator sees it."
            )
        try:
            ways = await dialled_ways(context.client, ears, observed.version, context.timing.dial_back_s)
        except ManyhandsError as error:
            return skipped(str(error))
    context.reachable = bool(ways)
    names = tuple(sorted(TRANSPORTS[way.transport] for way in ways))
    return judge_position(bool(ways), observed, own_addresses(), tried.port, names)


def _not_bound(endpoint: Endpoint) -> Outcome:
    try:
        endpoint.bind().close()
        reason = "something has just used it"
    except OSError as error:
        reason = str(error.strerror)
    found = f"Port {endpoint.port} cannot be listened on ({reason})."
    return failed(found, "Stop what uses it, or --listen elsewhere.")


def judge_position(
    dialled: bool, observed: IPAddress, own: Collection[IPAddress], port: int, ways: tuple[str, ...] = ()
) -> Outcome:
    """What it means that a machine with these addresses is seen at that one and could be dialled there, or not."""
    position = position_of(dialled, observed, own)
    data = {
        "reachable": dialled,
        "position": position.value,
        "observed_address": str(observed),
        "port": port,
        "ways": list(ways),
    }
    seen = f"The coordinator sees {observed}" + ("" if observed.is_global else ", which is no address of the internet")
    if dialled:
        return ok(f"{seen}, and a connection from there arrives here ({', '.join((position.value, *ways))}).", **data)
    found = f"{seen}, but no connection from there arrives here ({position.value})."
    return warning(found, _remedy(position), **data)


def position_of(dialled: bool, observed: IPAddress, own: Collection[IPAddress]) -> Position:
    """Compare what the coordinator sees with what this machine has."""
    if observed in own:
        return Position.OPEN if dialled else Position.FIREWALL
    if dialled:
        return Position.FORWARDED
    return Position.CARRIER_NAT if any(address in CARRIER_NETWORK for address in own) else Position.NAT


def _remedy(position: Position) -> str:
    if position is Position.CARRIER_NAT:
        return "It joins through a relay: your provider shares one address among many customers."
    opened = "allow a TCP port in the firewall" if position is Position.FIREWALL else "forward a TCP port in the router"
    return f"It joins through a relay. To be reached directly: {opened} and name it (`--listen /ip4/0.0.0.0/tcp/PORT`)."
