"""Stages of the swarm: whether others reach this machine, and whether its p2p daemon starts and reaches the keeper.

Reachability is tried, not guessed: the coordinator dials the address that it sees, at a port where this machine
listens. The keeper is tried over TCP and over QUIC. hivemind lives in a helper: it must not come into a process with
gRPC.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from enum import Enum

from auth.errors import ManyhandsError
from peer.control.reachability import dialled_ways, listening, own_addresses
from peer.doctor.context import Context
from peer.doctor.helper import Helper, HelperError, swarm_helper_main
from peer.doctor.questions import Answer, Daemon, Dial, Dialled, Question, StartDaemon
from peer.doctor.stages import CheckResult, failed, ok, skipped, warning
from peer.network.endpoints import TRANSPORTS, Endpoint, IPAddress, everywhere, read_endpoint

CARRIER_NETWORK = ipaddress.ip_network("100.64.0.0/10")
INSTALL_AGAIN = "Install manyhands again, into an environment of its own; its log is in the details."
_PORT = re.compile(r"/(?:tcp|udp)/(\d+)")


class NetworkPosition(str, Enum):
    """The position of a machine in the network, seen from the coordinator."""

    OPEN = "open"  # its own address, incoming connections arrive
    FIREWALL = "firewall"  # its own address, incoming connections do not arrive
    FORWARDED = "forwarded port"  # behind a router that lets connections to this port through
    NAT = "NAT"  # behind a router that does not
    CARRIER_NAT = "carrier-grade NAT"  # behind the provider's router, where nobody can forward a port


async def check_reachability(context: Context) -> CheckResult:
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


def _not_bound(endpoint: Endpoint) -> CheckResult:
    try:
        endpoint.bind().close()
        reason = "something has just used it"
    except OSError as error:
        reason = str(error.strerror)
    found = f"Port {endpoint.port} cannot be listened on ({reason})."
    return failed(found, "Stop what uses it, or --listen elsewhere.")


def judge_position(
    dialled: bool, observed: IPAddress, own: Collection[IPAddress], port: int, ways: tuple[str, ...] = ()
) -> CheckResult:
    """Judge a machine's position by its own addresses, the one it is seen at, and whether it could be dialled there."""
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


def position_of(dialled: bool, observed: IPAddress, own: Collection[IPAddress]) -> NetworkPosition:
    """Compare what the coordinator sees with what this machine has."""
    if observed in own:
        return NetworkPosition.OPEN if dialled else NetworkPosition.FIREWALL
    if dialled:
        return NetworkPosition.FORWARDED
    return NetworkPosition.CARRIER_NAT if any(address in CARRIER_NETWORK for address in own) else NetworkPosition.NAT


def _remedy(position: NetworkPosition) -> str:
    if position is NetworkPosition.CARRIER_NAT:
        return "It joins through a relay: your provider shares one address among many customers."
    opened = (
        "allow a TCP port in the firewall"
        if position is NetworkPosition.FIREWALL
        else "forward a TCP port in the router"
    )
    return f"It joins through a relay. To be reached directly: {opened} and name it (`--listen /ip4/0.0.0.0/tcp/PORT`)."


async def check_daemon(context: Context) -> CheckResult:
    """hivemind's p2p daemon starts and listens as it would for a peer."""
    listen = context.options.listen or tuple(endpoint.maddr for endpoint in everywhere())
    question = StartDaemon(listen, context.timing.daemon_s)
    try:
        daemon = await _ask(context, question)
    except HelperError as error:
        return failed(str(error), INSTALL_AGAIN)
    assert isinstance(daemon, Daemon)
    if not daemon.error:
        return ok("The p2p daemon starts.", addresses=list(daemon.addresses))
    return failed(f"The p2p daemon does not start: {daemon.error}.", _daemon_remedy(daemon.error), log=list(daemon.log))


def _daemon_remedy(error: str) -> str:
    if "address already in use" in error:
        return "Stop what uses the port, or --listen elsewhere."
    if "cannot assign requested address" in error:
        return "Give --listen an address of this machine, or 0.0.0.0 for all."
    if "in time" in error or "seconds" in error:
        return "See whether a security program holds it up, and whether this machine is overloaded."
    return INSTALL_AGAIN


async def check_swarm_tcp(context: Context) -> CheckResult:
    """The keeper answers over TCP; without that nobody can join."""
    assert context.description is not None
    addresses = context.description.addresses_over("tcp")
    if not addresses:
        found = "The coordinator names no address of the swarm: its keeper has not started."
        return failed(found, "Ask the operator whether the keeper is running.")
    reasons = await _dial_all(context, addresses)
    data = {"addresses": reasons}
    if "" in reasons.values():
        return ok("The keeper answers over TCP.", **data)
    told = _told(reasons)
    remedy = f"Allow outgoing TCP to port {_ports(addresses)}, and ask the operator whether the keeper is running."
    return failed(f"The keeper does not answer over TCP: {told}.", remedy, **data)


async def check_swarm_quic(context: Context) -> CheckResult:
    """The keeper answers over QUIC, where it listens there; TCP would do."""
    assert context.description is not None
    addresses = context.description.addresses_over("udp")
    if not addresses:
        return skipped("The run's keeper listens on TCP only.")
    reasons = await _dial_all(context, addresses)
    data = {"addresses": reasons}
    if "" in reasons.values():
        return ok("The keeper answers over QUIC.", **data)
    remedy = f"Allow outgoing UDP to port {_ports(addresses)} if you can; TCP does as well."
    return warning(f"The keeper does not answer over QUIC: {_told(reasons)}.", remedy, **data)


async def check_relay(context: Context) -> CheckResult:
    """The keeper passes on connections for peers that others cannot reach."""
    if context.relays:
        return ok("The keeper relays for peers that cannot be reached.", offered=True)
    if context.reachable:
        return ok("The keeper relays for nobody; this machine needs no relay.", offered=False)
    return warning("The keeper relays for nobody.", "It joins as a client; nothing need be done.", offered=False)


async def _dial_all(context: Context, addresses: tuple[str, ...]) -> dict[str, str]:
    """For each address why it could not be dialled; "" if it could."""
    reasons = {}
    for address in addresses:
        try:
            dialled = await _ask(context, Dial(address, context.timing.connect_s))
        except HelperError as error:
            dialled = Dialled(error=str(error))
        assert isinstance(dialled, Dialled)
        reasons[address] = dialled.error
        context.relays = context.relays or dialled.relays
    return reasons


async def _ask(context: Context, question: Question) -> Answer:
    if context.swarm_helper is None:
        context.swarm_helper = Helper(context.swarm_helper_main or swarm_helper_main)
        context.resources.push_async_callback(context.swarm_helper.end)
    return await context.swarm_helper.ask(question, context.timing.helper_s)


def _told(reasons: dict[str, str]) -> str:
    return ", ".join(f"{address.partition('/p2p/')[0]} ({reason})" for address, reason in reasons.items())


def _ports(addresses: tuple[str, ...]) -> str:
    found = (match.group(1) for address in addresses if (match := _PORT.search(address)))
    return " and ".join(dict.fromkeys(found))
