"""The way to the coordinator, each stage failing for real where a test can make it fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from auth.join_link import Address, JoinLink
from coordinator.ports import free_ports
from peer.doctor.context import Context, Options
from peer.doctor.findings import Verdict
from peer.doctor.network import (
    DROPPED,
    check_names,
    check_proxy,
    check_route,
    check_tcp,
    judge_connections,
    judge_route,
)

OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED
PASSWORD = "hunter2"
HERE = "127.0.0.1"


def context_for(host: str, port: int = 7443, **more: object) -> Context:
    """An examination of the way to host:port."""
    link = JoinLink(host, port, "run", "ab" * 32)
    return Context(Options(Path("unused"), link), **more)  # type: ignore[arg-type]


async def test_a_name_has_addresses() -> None:
    """They are kept for the next stage."""
    context = context_for("localhost")
    outcome = await check_names(context)
    assert outcome.verdict is OK
    hosts = [address.host for address in context.addresses]
    assert HERE in hosts or "::1" in hosts
    assert outcome.data["addresses"] == hosts


async def test_an_unknown_name_fails() -> None:
    """A name that exists nowhere is named, with what to look at."""
    outcome = await check_names(context_for("nobody.invalid"))
    assert outcome.verdict is FAILED
    assert "nobody.invalid" in outcome.found
    assert "DNS" in outcome.remedy


@pytest.mark.parametrize("name", ["nobody.invalid", "no..body"])
async def test_one_of_several_names_is_enough(name: str) -> None:
    """The one that exists nowhere is a warning that names it."""
    link = replace(context_for(name).link, others=(Address(HERE, 7444),))
    context = Context(Options(Path("unused"), link))
    outcome = await check_names(context)
    assert outcome.verdict is WARNING
    assert name in outcome.found
    assert context.addresses == {Address(HERE, 7444): link.each()[1]}


async def test_an_open_port_is_reached() -> None:
    """A listener is enough; what it speaks is the next stage's question."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), HERE, 0)
    context = context_for(HERE, server.sockets[0].getsockname()[1])
    context.addresses = {context.link.address: context.link}
    outcome = await check_tcp(context)
    assert outcome.verdict is OK
    assert context.reached == (context.link.address,)
    server.close()


async def test_a_port_nobody_listens_on_fails() -> None:
    """A refused connection means that the coordinator is not there."""
    (port,) = free_ports(HERE, 1)
    context = context_for(HERE, port)
    context.addresses = {context.link.address: context.link}
    outcome = await check_tcp(context)
    assert outcome.verdict is FAILED
    assert "connection refused" in outcome.found
    assert "operator" in outcome.remedy
    assert context.reached == ()


def test_dropped_connections_point_to_a_firewall() -> None:
    """Silence is told apart from a refusal."""
    outcome = judge_connections({Address("192.0.2.1", 7443): DROPPED})
    assert outcome.verdict is FAILED
    assert "outgoing TCP to port 7443" in outcome.remedy


def test_one_address_of_two_is_a_warning() -> None:
    """Where IPv6 is broken and IPv4 works, the run can be joined."""
    outcome = judge_connections({Address("2001:db8::1", 7443): "network is unreachable", Address(HERE, 7443): None})
    assert outcome.verdict is WARNING
    assert "[2001:db8::1]:7443 (network is unreachable)" in outcome.found


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
async def test_a_proxy_is_named_without_its_password(name: str) -> None:
    """Where no connection came about, the proxy may be the reason."""
    environ = {name: f"http://ada:{PASSWORD}@proxy.example:8080", "PATH": "/bin", "NO_PROXY": "localhost"}
    outcome = await check_proxy(context_for(HERE, environ=environ))
    assert outcome.verdict is WARNING
    assert name in outcome.found
    assert PASSWORD not in str(outcome)


async def test_a_proxy_does_not_matter_where_connections_work() -> None:
    """It is mentioned, no more."""
    context = context_for(HERE, environ={"HTTPS_PROXY": "http://proxy.example"})
    context.reached = (context.link.address,)
    assert (await check_proxy(context)).verdict is OK


async def test_without_a_proxy_all_is_well() -> None:
    """An empty variable counts as none."""
    assert (await check_proxy(context_for(HERE, environ={"HTTPS_PROXY": ""}))).verdict is OK


async def test_the_interface_to_the_coordinator_is_found() -> None:
    """To this machine itself connections go through the loopback interface."""
    context = context_for(HERE)
    context.reached = (context.link.address,)
    outcome = await check_route(context)
    assert outcome.verdict is OK
    assert outcome.data == {"interface": "lo", "local_address": HERE}


@pytest.mark.parametrize("interface", ["tun0", "wg-home", "utun3", "tailscale0", "ppp0"])
def test_a_vpn_is_a_warning(interface: str) -> None:
    """Tunnels are known by their names."""
    outcome = judge_route("10.8.0.2", interface)
    assert outcome.verdict is WARNING
    assert interface in outcome.found


def test_an_unknown_interface_is_no_error() -> None:
    """Some systems do not tell."""
    assert judge_route("192.0.2.7", None).verdict is OK
