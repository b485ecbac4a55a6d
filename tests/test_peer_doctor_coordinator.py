"""The doctor at the coordinator's door: a real one, and strange ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from auth.errors import ManyhandsError
from auth.join_link import JoinLink
from coordinator.ports import free_ports
from peer import control_client
from peer.doctor.checkup import CONTACT, REQUIREMENTS
from peer.doctor.context import Context, Options
from peer.doctor.description import read_description
from peer.doctor.findings import Finding, Verdict
from peer.doctor.stages import run_stages
from peer.protocol import control_pb2
from peer.run_config import RunConfig
from tests.support.control_plane import serving, write_status
from tests.support.strange_coordinators import OldCoordinator, strange_coordinator

OK, WARNING, FAILED, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.SKIPPED
KEEPER = "/ip4/192.0.2.1/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
PUBLIC = RunConfig().to_json()


async def examine(link: JoinLink, clock: Callable[[], float] = time.time) -> dict[str, Finding]:
    """All stages up to the run's requirements."""
    async with Context(Options(Path("unused"), link), clock=clock, environ={}) as context:
        return {finding.stage: finding async for finding in run_stages((*CONTACT, REQUIREMENTS), context)}


def verdicts(findings: dict[str, Finding]) -> dict[str, Verdict]:
    return {name: finding.verdict for name, finding in findings.items()}


async def test_a_real_coordinator_passes_every_stage(tmp_path: Path) -> None:
    """From the name to what the run requires, without an account, and nothing is refused or remembered."""
    async with serving(tmp_path) as coordinator:
        write_status(coordinator, KEEPER)
        found = await examine(coordinator.link)
        assert set(verdicts(found).values()) == {OK}
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
