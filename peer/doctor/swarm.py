"""Stages that check the swarm: this machine's reachability, its p2p daemon, and the keeper.

The coordinator connects back to a listening port at this machine's observed address. A helper
process connects to the keeper, because hivemind must not share a process with gRPC.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection
from enum import Enum

from peer.control.reachability import dialled_ways, listening, own_addresses
from peer.doctor.answers import Daemon, Dialled
from peer.doctor.context import Context
from peer.doctor.helper import HelperError
from peer.doctor.stages import CheckResult, failed, ok, skipped, warning
from peer.network.endpoints import TRANSPORTS, Endpoint, IPAddress, everywhere, read_endpoint

CARRIER_NETWORK = ipaddress.ip_network("100.64.0.0/10")
INSTALL_AGAIN = "Install manyhands again, into an environment of its own; its log is in the details."
START_DAEMON, DIAL = "peer.doctor.swarm_helper:start_daemon", "peer.doctor.swarm_helper:dial"
_PORT = re.compile(r"/(?:tcp|udp)/(\d+)")


class NetworkPosition(str, Enum):
    """A machine's position in the network, inferred from the coordinator's connection attempt."""

    OPEN = "open"  # public address that accepts connections
    FIREWALL = "firewall"  # public address, but incoming connections are blocked
    FORWARDED = "forwarded port"  # behind a router that forwards this port
    NAT = "NAT"  # behind a router that does not forward the port
    CARRIER_NAT = "carrier-grade NAT"  # behind the internet provider's NAT, which forwards no ports


_NAMING_IT = " and name it (`--listen /ip4/0.0.0.0/tcp/PORT`)."
REMEDIES = {
    NetworkPosition.FIREWALL: f". To be reached directly: allow a TCP port in the firewall{_NAMING_IT}",
    NetworkPosition.NAT: f". To be reached directly: forward a TCP port in the router{_NAMING_IT}",
    NetworkPosition.CARRIER_NAT: ": your provider shares one address among many customers.",
}


async def check_reachability(context: Context) -> CheckResult:
    """Listen like a peer, and ask the coordinator to connect back over the same IP version."""
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
        ways = await dialled_ways(context.client, ears, observed.version, context.timing.dial_back_s)
    context.reachable = bool(ways)
    names = tuple(sorted(TRANSPORTS[way.transport] for way in ways))
    return judge_position(bool(ways), observed, own_addresses(), tried.port, names)


def _not_bound(endpoint: Endpoint) -> CheckResult:
    try:
        endpoint.bind().close()
        reason = "something has just used it"
    except OSError as error:
        reason = str(error.strerror)
    found = f"Cannot listen on port {endpoint.port} ({reason})."
    return failed(found, "Stop what uses it, or --listen elsewhere.")


def judge_position(
    dialled: bool, observed: IPAddress, own: Collection[IPAddress], port: int, ways: tuple[str, ...] = ()
) -> CheckResult:
    """Judge the reachability; `dialled` means that the coordinator's connection arrived."""
    position = position_of(dialled, observed, own)
    data = {
        "reachable": dialled,
        "position": position.value,
        "observed_address": str(observed),
        "port": port,
        "ways": list(ways),
    }
    seen = f"The coordinator sees {observed}" + ("" if observed.is_global else ", which is not a public address")
    if dialled:
        return ok(f"{seen}, and a connection from there arrives here ({', '.join((position.value, *ways))}).", **data)
    found = f"{seen}, but no connection from there arrives here ({position.value})."
    return warning(found, f"It joins through a relay{REMEDIES[position]}", **data)


def position_of(dialled: bool, observed: IPAddress, own: Collection[IPAddress]) -> NetworkPosition:
    """Return the machine's position; `observed` is its address as seen by the coordinator."""
    if observed in own:
        return NetworkPosition.OPEN if dialled else NetworkPosition.FIREWALL
    if dialled:
        return NetworkPosition.FORWARDED
    return NetworkPosition.CARRIER_NAT if any(address in CARRIER_NETWORK for address in own) else NetworkPosition.NAT


async def check_daemon(context: Context) -> CheckResult:
    """Check that hivemind's p2p daemon starts and listens with a peer's options."""
    listen = context.options.listen or tuple(endpoint.maddr for endpoint in everywhere())
    try:
        daemon: Daemon = await context.helper.ask(START_DAEMON, listen, context.timing.daemon_s)
    except HelperError as error:
        return failed(str(error), INSTALL_AGAIN)
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
    """Check that the keeper answers over TCP, which joining requires."""
    found = "The coordinator names no address of the swarm: its keeper has not started."
    absent = failed(found, "Ask the operator whether the keeper is running.")
    remedy = "Allow outgoing TCP to port {ports}, and ask the operator whether the keeper is running."
    return await _dial_keeper(context, "tcp", absent, failed, remedy)


async def check_swarm_quic(context: Context) -> CheckResult:
    """Check that the keeper answers over QUIC, if it offers QUIC; joining does not require this."""
    absent = skipped("The run's keeper listens on TCP only.")
    remedy = "Allow outgoing UDP to port {ports} if you can; TCP does as well."
    return await _dial_keeper(context, "udp", absent, warning, remedy)


async def _dial_keeper(
    context: Context, transport: str, absent: CheckResult, silent: Callable[..., CheckResult], remedy: str
) -> CheckResult:
    """Connect to each of the keeper's addresses for a transport; at least one must answer.

    `absent` is the result if there is no such address; `silent` creates the result if none answers.
    """
    assert context.description is not None
    reasons: dict[str, str] = {}  # address -> error, or "" if it answered
    for address in context.description.addresses_over(transport):
        try:
            dialled: Dialled = await context.helper.ask(DIAL, address, context.timing.connect_s)
        except HelperError as error:
            dialled = Dialled(error=str(error))
        reasons[address] = dialled.error
        context.relays = context.relays or dialled.relays
    if not reasons:
        return absent
    name = TRANSPORTS[transport]
    if "" in reasons.values():
        return ok(f"The keeper answers over {name}.", addresses=reasons)
    told = ", ".join(f"{address.partition('/p2p/')[0]} ({reason})" for address, reason in reasons.items())
    ports = dict.fromkeys(match.group(1) for address in reasons if (match := _PORT.search(address)))
    found = f"The keeper does not answer over {name}: {told}."
    return silent(found, remedy.format(ports=" and ".join(ports)), addresses=reasons)


def check_relay(context: Context) -> CheckResult:
    """Check that the keeper is a relay for peers that are not directly reachable."""
    if context.relays:
        return ok("The keeper relays for peers that cannot be reached.", offered=True)
    if context.reachable:
        return ok("The keeper relays for nobody; this machine needs no relay.", offered=False)
    return warning("The keeper relays for nobody.", "It joins as a client; there is nothing to do.", offered=False)
