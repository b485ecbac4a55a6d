"""Whether others can reach this machine: really dialled by a coordinator, or really not."""

from __future__ import annotations

import socket
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from peer import dial_back
from peer.control_client import ControlClient
from peer.dial_back import own_addresses
from peer.doctor.context import Context, Options, Timing
from peer.doctor.description import read_description
from peer.doctor.findings import Verdict
from peer.doctor.reachability import (
    Position,
    check_reachability,
    judge_position,
    position_of,
)
from peer.protocol import control_pb2
from peer.run_config import RunConfig
from tests.support.control_plane import connected, serving
from tests.support.strange_coordinators import OldCoordinator, SilentCoordinator, strange_coordinator
from tests.support.waiting import PATIENCE_S

OWN = frozenset({ip_address("192.168.1.5"), ip_address("2001:db8::5")})
BEHIND_CARRIER = frozenset({ip_address("100.72.0.9")})
PUBLIC = ip_address("93.184.216.34")
REPLY = control_pb2.DescribeReply(run_config_json=RunConfig().to_json(), observed_address="127.0.0.1")


def context_with(client: ControlClient, listen: tuple[str, ...] = (), dial_back_s: float = PATIENCE_S) -> Context:
    context = Context(Options(Path("unused"), client.link, listen=listen), timing=Timing(dial_back_s=dial_back_s))
    context.client, context.description = client, read_description(REPLY)
    return context


async def test_a_machine_that_is_dialled_is_reachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real coordinator connects to a port here, which is free again afterwards."""
    monkeypatch.setattr(dial_back, "OTHERS_TIMEOUT_S", PATIENCE_S)
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        context = context_with(client)
        outcome = await check_reachability(context)
        assert outcome.verdict is Verdict.OK
        assert context.reachable is True
        assert outcome.data["position"] == "open"
        assert "no address of the internet" in outcome.found
        assert outcome.data["ways"] == ["QUIC", "TCP"]
        with socket.create_server(("127.0.0.1", outcome.data["port"])):
            pass


async def test_a_machine_that_is_not_dialled_is_not(tmp_path: Path) -> None:
    """A coordinator whose connection never arrives, as behind a firewall."""
    async with strange_coordinator(tmp_path, SilentCoordinator(REPLY)) as link:
        client = await ControlClient.connect(link, time.time)
        context = context_with(client, dial_back_s=0.2)
        outcome = await check_reachability(context)
        await client.close()
    assert outcome.verdict is Verdict.WARNING
    assert context.reachable is False
    assert "through a relay" in outcome.remedy


async def test_a_port_that_is_taken_fails(tmp_path: Path) -> None:
    """The person asked for a port that another program has."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(tmp_path) as coordinator, connected(coordinator) as client:
            outcome = await check_reachability(context_with(client, listen=(f"/ip4/0.0.0.0/tcp/{port}",)))
    assert outcome.verdict is Verdict.FAILED
    assert str(port) in outcome.found
    assert "--listen" in outcome.remedy


async def test_an_older_coordinator_cannot_dial(tmp_path: Path) -> None:
    """Nothing is concluded from that."""
    async with strange_coordinator(tmp_path, OldCoordinator()) as link:
        client = await ControlClient.connect(link, time.time)
        context = context_with(client)
        assert (await check_reachability(context)).verdict is Verdict.SKIPPED
        assert context.reachable is None
        await client.close()


@pytest.mark.parametrize(
    ("dialled", "observed", "own", "position"),
    [
        (True, ip_address("2001:db8::5"), OWN, Position.OPEN),
        (False, ip_address("2001:db8::5"), OWN, Position.FIREWALL),
        (True, PUBLIC, OWN, Position.FORWARDED),
        (False, PUBLIC, OWN, Position.NAT),
        (False, PUBLIC, BEHIND_CARRIER, Position.CARRIER_NAT),
    ],
)
def test_what_stands_before_the_machine(
    dialled: bool, observed: object, own: frozenset[object], position: Position
) -> None:
    """Its own address or a router's, and whether connections arrive, tell them apart."""
    assert position_of(dialled, observed, own) is position  # type: ignore[arg-type]


@pytest.mark.parametrize(("own", "word"), [(OWN, "forward"), ({PUBLIC}, "firewall"), (BEHIND_CARRIER, "provider")])
def test_each_obstacle_has_its_remedy(own: frozenset[object], word: str) -> None:
    """A router's port is forwarded, a firewall's opened; with a provider's router nothing helps."""
    outcome = judge_position(False, PUBLIC, own, 31337)  # type: ignore[arg-type]
    assert word in outcome.remedy
    assert "through a relay" in outcome.remedy


def test_own_addresses_are_known() -> None:
    """At least the loopback's."""
    assert ip_address("127.0.0.1") in own_addresses()
