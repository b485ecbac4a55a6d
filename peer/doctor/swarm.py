"""Stages of the swarm: the p2p daemon starts here, and reaches the keeper, over TCP and over QUIC.

hivemind lives in a helper: it must not come into a process with gRPC.
"""

from __future__ import annotations

import re

from peer.doctor.context import Context
from peer.doctor.findings import Outcome, failed, ok, skipped, warning
from peer.doctor.helper import Helper, HelperError, swarm_helper_main
from peer.doctor.questions import Answer, Daemon, Dial, Dialled, Question, StartDaemon
from peer.ways import everywhere

INSTALL_AGAIN = "Install manyhands again, into an environment of its own; its log is in the details."
_PORT = re.compile(r"/(?:tcp|udp)/(\d+)")


async def check_daemon(context: Context) -> Outcome:
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


async def check_swarm_tcp(context: Context) -> Outcome:
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


async def check_swarm_quic(context: Context) -> Outcome:
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


async def check_relay(context: Context) -> Outcome:
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
