"""The doctor's stages up to the coordinator and the line's rate, each failing for real where a test can cause it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from auth.errors import ManyhandsError, UnreachableError
from auth.join_link import Address, JoinLink
from coordinator.control.visitors import PROBES_PER_MINUTE
from peer.config.run import RunConfig
from peer.control import client as control_client
from peer.control.client import ControlClient
from peer.control.reachability import LineSpeed, measure_line, rate
from peer.doctor.checkup import BANDWIDTH, CONTACT, REQUIREMENTS
from peer.doctor.contact import (
    DROPPED,
    SLOW_BYTES_PER_SECOND,
    check_names,
    check_proxy,
    check_route,
    judge_connections,
    judge_line,
    judge_route,
)
from peer.doctor.context import Context, Options, read_description
from peer.doctor.stages import StageResult, Verdict, run_stages
from peer.protocol import control_pb2
from tests.support.control_plane import connected, serving, write_status
from tests.support.ports import free_ports
from tests.support.strange_coordinators import OldCoordinator, SilentCoordinator, strange_coordinator


def context_with(client: ControlClient, link: JoinLink) -> Context:
    context = Context(Options(Path("unused"), link))
    context.client = client
    return context


async def test_the_line_is_measured(tmp_path: Path) -> None:
    """A real connection has a speed in each direction."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        outcome = await BANDWIDTH.examine(context_with(client, coordinator.link))
        assert outcome.verdict in (Verdict.OK, Verdict.WARNING)
        assert outcome.data["up_bytes_per_second"] > 0
        assert outcome.data["down_bytes_per_second"] > 0


async def test_a_slow_line_is_not_measured_for_ever(tmp_path: Path) -> None:
    """When the time is over, what has been sent and received is enough."""
    ticks: Iterator[int] = count()
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        speed = await measure_line(client, 3.0, lambda: float(next(ticks)))
        assert 0 < speed.up < 200_000
        assert 0 < speed.down < 200_000


@pytest.mark.usefixtures("no_patience")
async def test_a_coordinator_that_is_busy_is_no_failure(tmp_path: Path) -> None:
    """Who asks too often reads when to ask again."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        context = context_with(client, coordinator.link)
        outcomes = [await BANDWIDTH.examine(context) for _ in range(PROBES_PER_MINUTE + 1)]
        assert outcomes[-1].verdict is Verdict.SKIPPED
        assert "wait" in outcomes[-1].found


async def test_a_coordinator_that_miscounts_is_not_believed(tmp_path: Path) -> None:
    """Bytes that were not sent make no speed."""
    async with strange_coordinator(tmp_path, SilentCoordinator()) as link:
        client = await ControlClient.connect(link, time.time)
        with pytest.raises(UnreachableError):
            await measure_line(client, 5.0, time.monotonic)
        assert (await BANDWIDTH.examine(context_with(client, link))).verdict is Verdict.SKIPPED
        await client.close()


def test_the_slower_direction_decides() -> None:
    """A fast download does not make up for an upload that others wait for."""
    assert judge_line(LineSpeed(SLOW_BYTES_PER_SECOND, 1e9)).verdict is Verdict.OK
    slow = judge_line(LineSpeed(SLOW_BYTES_PER_SECOND - 1, 1e9))
    assert slow.verdict is Verdict.WARNING
    assert "2.0 Mbit/s up, 8,000.0 Mbit/s down" in slow.found


def test_a_rate_is_always_finite() -> None:
    """Also where no time seems to have passed."""
    assert rate(1000, 2.0) == 500.0
    assert rate(1000, 0.0) == 1e6


PASSWORD = "hunter2"

HERE = "127.0.0.1"


def context_for(host: str, port: int = 7443, **more: object) -> Context:
    """An examination of the way to host:port."""
    link = JoinLink(host, port, "run", "ab" * 32)
    return Context(Options(Path("unused"), link), **more)  # type: ignore[arg-type]


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
def test_a_proxy_is_named_without_its_password(name: str) -> None:
    """Where no connection came about, the proxy may be the reason."""
    environ = {name: f"http://ada:{PASSWORD}@proxy.example:8080", "PATH": "/bin", "NO_PROXY": "localhost"}
    outcome = check_proxy(context_for(HERE, environ=environ))
    assert outcome.verdict is WARNING
    assert name in outcome.found
    assert PASSWORD not in str(outcome)


@pytest.mark.parametrize("value", ["http://proxy.example", ""])
def test_a_proxy_does_not_matter_where_connections_work(value: str) -> None:
    """It is mentioned, no more; an empty variable counts as none."""
    context = context_for(HERE, environ={"HTTPS_PROXY": value})
    context.reached = (context.link.address,) if value else ()
    assert check_proxy(context).verdict is OK


def test_the_interface_to_the_coordinator_is_found() -> None:
    """To this machine itself connections go through the loopback interface."""
    context = context_for(HERE)
    context.reached = (context.link.address,)
    outcome = check_route(context)
    assert outcome.verdict is OK
    assert outcome.data == {"interface": "lo", "local_address": HERE}


@pytest.mark.parametrize("interface", ["tun0", "wg-home", "utun3", "tailscale0", "ppp0"])
def test_a_vpn_is_a_warning(interface: str) -> None:
    """Tunnels are known by their names; some systems do not tell."""
    outcome = judge_route("10.8.0.2", interface)
    assert outcome.verdict is WARNING
    assert interface in outcome.found
    assert judge_route("10.8.0.2", None).verdict is OK


OK, WARNING, FAILED, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.SKIPPED

KEEPER = "/ip4/192.0.2.1/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"

PUBLIC = RunConfig().to_json()


async def examine(link: JoinLink, clock: Callable[[], float] = time.time) -> dict[str, StageResult]:
    """All stages up to the run's requirements."""
    context = Context(Options(Path("unused"), link), clock=clock, environ={})
    async with context.resources:
        return {finding.stage: finding async for finding in run_stages((*CONTACT, REQUIREMENTS), context)}


def verdicts(findings: dict[str, StageResult]) -> dict[str, Verdict]:
    return {name: finding.verdict for name, finding in findings.items()}


async def test_a_real_coordinator_passes_every_stage(tmp_path: Path) -> None:
    """From the name to what the run requires, without an account, and nothing is refused or remembered."""
    async with serving(tmp_path) as coordinator:
        write_status(coordinator, KEEPER)
        found = await examine(coordinator.link)
        assert set(verdicts(found).values()) == {OK}
        assert found["names"].outcome.data == {"addresses": ["127.0.0.1"]}
        assert "4,096 samples of 512 tokens" in found["requirements"].outcome.found
        assert found["requirements"].outcome.data["swarm_addresses"] == [KEEPER]
        assert found["requirements"].outcome.data["swarm_samples_per_second"] == 7.5
        assert coordinator.refusals() == []


async def test_the_address_that_answers_is_examined(tmp_path: Path) -> None:
    """Of a link with several; that the first one does not is a warning."""
    (nobody,) = free_ports("127.0.0.1", 1)
    async with serving(tmp_path) as coordinator:
        write_status(coordinator, KEEPER)
        found = await examine(replace(coordinator.link, port=nobody, others=(coordinator.link.address,)))
    assert {name: verdict for name, verdict in verdicts(found).items() if verdict is not OK} == {"tcp": WARNING}


async def test_another_certificate_fails_and_nothing_more_is_asked(tmp_path: Path) -> None:
    """A wrong fingerprint stops there; what depends on it is skipped with the reason."""
    async with serving(tmp_path) as coordinator:
        found = await examine(replace(coordinator.link, fingerprint="0" * 64))
    assert found["tls"].verdict is FAILED
    assert "operator" in found["tls"].outcome.remedy
    for name in ("protocol", "run", "clock", "requirements"):
        assert found[name].verdict is SKIPPED
        assert "`tls` failed" in found[name].outcome.found


async def test_a_server_without_tls_fails() -> None:
    """A port that belongs to something else is told apart from a wrong certificate."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    link = JoinLink("127.0.0.1", server.sockets[0].getsockname()[1], "test", "ab" * 32)
    found = await examine(link)
    server.close()
    assert (found["tcp"].verdict, found["tls"].verdict) == (OK, FAILED)
    assert "TLS" in found["tls"].outcome.found


async def test_a_server_of_another_version_fails(tmp_path: Path) -> None:
    """A coordinator that says another version in its greeting."""
    async with strange_coordinator(tmp_path, OldCoordinator(version=99)) as link:
        found = await examine(link)
    assert found["protocol"].verdict is FAILED
    assert "99" in found["protocol"].outcome.found
    assert "Install" in found["protocol"].outcome.remedy


async def test_a_server_that_refuses_our_version_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own coordinator, met by another program."""
    monkeypatch.setattr(control_client, "PROTOCOL_VERSION", 99)
    async with serving(tmp_path) as coordinator:
        found = await examine(coordinator.link)
    assert found["protocol"].verdict is FAILED


async def test_another_run_fails(tmp_path: Path) -> None:
    """The right coordinator with another run's name."""
    async with serving(tmp_path) as coordinator:
        found = await examine(replace(coordinator.link, run="another"))
    assert found["run"].verdict is FAILED
    assert found["clock"].verdict is OK


@pytest.mark.parametrize(("ahead_s", "verdict"), [(0.0, OK), (30.0, WARNING), (-3600.0, FAILED)])
async def test_clocks_are_compared(tmp_path: Path, ahead_s: float, verdict: Verdict) -> None:
    """A small difference is a warning, one that makes tokens invalid a failure, with what to do."""
    async with serving(tmp_path) as coordinator:
        found = await examine(coordinator.link, clock=lambda: time.time() + ahead_s)
    assert found["clock"].verdict is verdict
    assert ("clock" in found["clock"].outcome.remedy) == (verdict is not OK)


async def test_an_older_coordinator_is_no_failure(tmp_path: Path) -> None:
    """It cannot say what its run needs; everything before that is examined."""
    async with strange_coordinator(tmp_path, OldCoordinator()) as link:
        found = await examine(link)
    assert found["requirements"].verdict is SKIPPED
    assert {verdict for name, verdict in verdicts(found).items() if name != "requirements"} == {OK}


def test_a_description_is_read() -> None:
    """Addresses of unknown form are left out, rates that are none count as none."""
    addresses = [KEEPER, "/ip4/192.0.2.1/udp/1/quic-v1/p2p/" + "Q" * 46, "/unix/etc/passwd", "x" * 9999, ""]
    description = read_description(
        control_pb2.DescribeReply(
            run_config_json=PUBLIC,
            swarm_addresses=addresses,
            observed_address="2001:db8::1",
            samples_per_second=float("nan"),
        )
    )
    assert description.swarm_addresses == tuple(addresses[:2])
    assert description.addresses_over("tcp") == (KEEPER,)
    assert description.addresses_over("udp") == (addresses[1],)
    assert str(description.observed_address) == "2001:db8::1"
    assert description.samples_per_second == 0.0


@pytest.mark.parametrize(
    "reply",
    [
        control_pb2.DescribeReply(),
        control_pb2.DescribeReply(run_config_json=PUBLIC, observed_address="nowhere"),
        control_pb2.DescribeReply(run_config_json="{}" + " " * 100_000, observed_address="192.0.2.1"),
        control_pb2.DescribeReply(run_config_json='{"evil": 1}', observed_address="192.0.2.1"),
    ],
)
def test_a_description_that_is_none_is_refused(reply: control_pb2.DescribeReply) -> None:
    """What no coordinator of ours sends becomes an error of ours."""
    with pytest.raises(ManyhandsError):
        read_description(reply)
