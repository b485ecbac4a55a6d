"""Stages that check the connection to the coordinator: DNS, TCP, TLS, protocol and bandwidth.

They check that the coordinator is reachable, that it is the one in the join link, and that both
sides use the same protocol version. Bandwidth is measured in both directions.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping

import psutil

from auth.errors import ClockError, FingerprintError, VersionError
from auth.join_link import Address, JoinLink
from peer.control.client import ControlClient, check_clock, check_run, check_version, find_coordinator
from peer.control.reachability import LineSpeed, measure_line
from peer.doctor.context import Context, read_description
from peer.doctor.stages import CheckResult, failed, ok, warning
from peer.protocol import MAX_CLOCK_SKEW_S, PROTOCOL_VERSION

NOTABLE_SKEW_S = MAX_CLOCK_SKEW_S / 4
ASK_OPERATOR = "Ask the operator for the current link, and whether the coordinator is running."
SLOW_BYTES_PER_SECOND = 250_000.0  # 2 Mbit/s; below this, ALBERT-large's gradients take over two minutes
MAX_ADDRESSES = 6  # maximum number of addresses to try per host
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
TUNNELS = ("tun", "tap", "utun", "wg", "ppp", "ipsec", "tailscale", "zt", "nordlynx", "proton", "cscotun", "vpn")
DROPPED = "no answer"
REMEDIES = {  # connection error -> remedy
    DROPPED: "A firewall drops them: allow outgoing TCP to port {port}, or try another network.",
    os.strerror(errno.ECONNREFUSED).lower(): "Nothing listens there: ask the operator whether the coordinator is "
    "running and the link is current.",
}


async def check_names(context: Context) -> CheckResult:
    """Check that at least one of the join link's hosts resolves to an address."""
    links = context.link.each()
    found = await asyncio.gather(*(_addresses_of(link, context.timing.connect_s) for link in links))
    for link, (addresses, _) in zip(links, found, strict=True):
        context.addresses |= dict.fromkeys(addresses, link)
    sentence = " ".join(dict.fromkeys(told for _, told in found))  # one sentence per host
    if not context.addresses:
        return failed(sentence, "Check the link's hosts, and this machine's connection and DNS.")
    hosts = [*dict.fromkeys(address.host for address in context.addresses)]
    if not all(addresses for addresses, _ in found):
        return warning(sentence, "The other address may work.", addresses=hosts)
    return ok(sentence, addresses=hosts)


async def _addresses_of(link: JoinLink, timeout_s: float) -> tuple[list[Address], str]:
    """Resolve a link's first host; return its addresses and a sentence for the user."""
    resolving = asyncio.get_running_loop().getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(resolving, timeout_s)
    except asyncio.TimeoutError:
        return [], f"No name server answers for `{link.host}`."
    except (OSError, UnicodeError) as error:  # the host name is unknown or invalid
        return [], f"`{link.host}` has no address ({getattr(error, 'strerror', None) or error})."
    hosts = [*dict.fromkeys(str(entry[0]) for *_, entry in found)][:MAX_ADDRESSES]
    kinds = sorted({"IPv6" if ":" in host else "IPv4" for host in hosts})
    return [Address(host, link.port) for host in hosts], f"`{link.host}` is {', '.join(hosts)} ({' and '.join(kinds)})."


async def check_tcp(context: Context) -> CheckResult:
    """Check that the coordinator's port accepts connections at each of its addresses."""
    tries = [_try_connection(address, context.timing.connect_s) for address in context.addresses]
    reasons = dict(zip(context.addresses, await asyncio.gather(*tries), strict=True))
    context.reached = tuple(address for address, reason in reasons.items() if reason is None)
    return judge_connections(reasons)


def judge_connections(reasons: Mapping[Address, str | None]) -> CheckResult:
    """Judge connection attempts; `reasons` maps each address to its error, or None on success."""
    failures = {address: reason for address, reason in reasons.items() if reason is not None}
    reached = [str(address) for address in reasons if address not in failures]
    data = {"reached": reached, "failures": {str(address): reason for address, reason in failures.items()}}
    if not failures:
        return ok(f"Connections are accepted at {', '.join(reached)}.", **data)
    told = ", ".join(f"{address} ({reason})" for address, reason in failures.items())
    if not reached:
        (first, reason), *_ = failures.items()
        remedy = REMEDIES.get(reason, "Check this machine's connection to the internet.").format(port=first.port)
        return failed(f"No connection succeeds: {told}.", remedy, **data)
    remedy = "The other address works; tell the operator if this persists."
    return warning(f"Connections are accepted at {', '.join(reached)}, but not at {told}.", remedy, **data)


async def _try_connection(address: Address, timeout_s: float) -> str | None:
    """Open a TCP connection; return None on success, else the reason for the failure."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*address), timeout_s)
    except asyncio.TimeoutError:
        return DROPPED
    except OSError as error:
        if error.errno == errno.ETIMEDOUT:
            return DROPPED
        return os.strerror(error.errno).lower() if error.errno else "no reason given"
    writer.transport.abort()
    return None


def check_proxy(context: Context) -> CheckResult:
    """Check for proxy variables, which manyhands ignores; omit values, which may be secret."""
    names = sorted(name for name, value in context.environ.items() if value and name.lower() in PROXY_VARIABLES)
    if not names:
        return ok("The environment names no proxy.", variables=[])
    listed = ", ".join(f"`{name}`" for name in names)
    if context.reached:
        return ok(f"{listed} is set; manyhands connects directly, which works here.", variables=names)
    return warning(
        f"{listed} is set, but manyhands connects directly.",
        "If this network allows connections only through the proxy, join from another one.",
        variables=names,
    )


def check_route(context: Context) -> CheckResult:
    """Find the network interface used to reach the coordinator."""
    target = context.reached[0]
    family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as chooser:
        chooser.connect(tuple(target))  # selects a local address without sending anything
        local_address = str(chooser.getsockname()[0])
    interfaces = {
        entry.address.partition("%")[0]: name for name, found in psutil.net_if_addrs().items() for entry in found
    }
    return judge_route(local_address, interfaces.get(local_address))


def judge_route(local_address: str, interface: str | None) -> CheckResult:
    """Judge the outgoing network interface; warn if it looks like a VPN."""
    data = {"interface": interface, "local_address": local_address}
    if interface is not None and interface.lower().startswith(TUNNELS):
        remedy = "Disconnect it while you train if you can: it costs speed and hides this machine from other peers."
        return warning(f"Connections go through `{interface}`, which looks like a VPN.", remedy, **data)
    return ok(f"Connections go through {interface or 'an unknown interface'} ({local_address}).", **data)


async def check_tls(context: Context) -> CheckResult:
    """Check that the server's certificate matches the join link's fingerprint."""
    try:
        links = dict.fromkeys(context.addresses[address] for address in context.reached)
        context.answering, context.certificate = await find_coordinator([*links])
    except FingerprintError:
        return failed(
            "The server's certificate is not the one that the link names.",
            "Ask the operator for the current link and do not join by this one; a proxy that reads TLS looks the same.",
        )
    return ok("The server's certificate is the one that the link names.")


async def check_protocol(context: Context) -> CheckResult:
    """Check that the coordinator and this program use the same protocol version."""
    context.client = client = ControlClient(context.link, context.certificate)
    context.resources.push_async_callback(client.close)
    try:
        greeting = await client.greet()
        check_version(greeting)
    except VersionError as error:
        return failed(str(error), "Install the version of manyhands that the operator names.")
    context.greeting = greeting
    return ok(f"Both speak version {PROTOCOL_VERSION} of the protocol.", version=PROTOCOL_VERSION)


def check_run_name(context: Context) -> CheckResult:
    """Check that the coordinator serves the join link's run."""
    assert context.greeting is not None
    check_run(context.link, context.greeting)
    return ok(f"The coordinator serves `{context.link.run}`.", run=context.link.run)


def check_time(context: Context) -> CheckResult:
    """Check that this machine's clock is close enough to the coordinator's for tokens to be valid."""
    assert context.greeting is not None
    now = context.clock()
    skew_s = now - context.greeting.server_time
    data, remedy = {"skew_s": round(skew_s, 1)}, "Set this machine's clock, and keep it synchronized (NTP)."
    try:
        check_clock(context.greeting, now)
    except ClockError as error:
        return failed(str(error), remedy, **data)
    found = f"The clocks differ by {abs(skew_s):.0f} s."
    return warning(found, remedy, **data) if abs(skew_s) > NOTABLE_SKEW_S else ok(found, **data)


async def check_requirements(context: Context) -> CheckResult:
    """Fetch the run's description for later stages."""
    assert context.client is not None
    context.description = description = read_description(await context.client.describe())
    config = description.config
    model, batch = config.model, config.averaging.target_batch_size
    return ok(
        f"It trains {model.architecture} ({model.num_hidden_layers} layers of {model.hidden_size}); "
        f"a step takes {batch:,} samples of {config.data.sequence_length} tokens.",
        architecture=model.architecture,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        sequence_length=config.data.sequence_length,
        target_batch_size=batch,
        swarm_addresses=list(description.swarm_addresses),
        observed_address=str(description.observed_address),
        swarm_samples_per_second=description.samples_per_second,
    )


async def check_bandwidth(context: Context) -> CheckResult:
    """Measure the upload and download bandwidth to the coordinator by transferring a few MiB."""
    assert context.client is not None
    context.line = await measure_line(context.client, context.timing.probe_s, context.stopwatch)
    return judge_line(context.line)


def judge_line(speed: LineSpeed) -> CheckResult:
    """Check that the bandwidth is sufficient for averaging."""
    up, down = (f"{rate * 8 / 1e6:,.1f} Mbit/s" for rate in (speed.up, speed.down))
    found = f"{up} up, {down} down, measured with the coordinator."
    data = {"up_bytes_per_second": round(speed.up), "down_bytes_per_second": round(speed.down)}
    if min(speed.up, speed.down) < SLOW_BYTES_PER_SECOND:
        remedy = "Others will wait for this line at each averaging: use a cable or a faster connection if you can."
        return warning(found, remedy, **data)
    return ok(found, **data)
