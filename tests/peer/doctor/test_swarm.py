"""The doctor's stages of swarm and reachability, with real p2p daemons and a coordinator that dials back or not."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

import pytest

from peer.config.run import RunConfig
from peer.control import reachability as dial_back
from peer.control.client import ControlClient
from peer.control.reachability import own_addresses
from peer.doctor.checkup import BEYOND_TCP, DAEMON, KEEPER, REACHABILITY
from peer.doctor.context import Context, Options, RunDescription, Timing, read_description
from peer.doctor.helper import as_it_is
from peer.doctor.stages import CheckResult, Stage, StageResult, Verdict, ok, run_stages
from peer.doctor.swarm import NetworkPosition, check_daemon, judge_position, position_of
from peer.doctor.swarm_helper import describe
from peer.protocol import control_pb2
from tests.support import doctor_mains
from tests.support.control_plane import connected, serving
from tests.support.strange_coordinators import SilentCoordinator, strange_coordinator
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("forked")

OK, WARNING, FAILED, SKIPPED = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.SKIPPED

HERE = "/ip4/127.0.0.1"

HANGS_S = 3.0  # after that a daemon is given up

LONG = Timing(connect_s=PATIENCE_S, daemon_s=PATIENCE_S, helper_s=PATIENCE_S)


@contextmanager
def keeper_on(*addresses: str) -> Iterator[tuple[str, ...]]:
    """A p2p daemon that listens there; yields where it can be dialled."""
    spec = find_spec("hivemind")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "hivemind_cli" / "p2pd"
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind("")  # the system chooses a name that is free, beyond the file system
        control = f"/unix/tmp/hivemind-test-{unused.getsockname().hex()}.sock"
    command = [program, f"-listen={control}", f"-hostAddrs={','.join(addresses)}", "-dhtServer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if len([told for told in lines if told.startswith(HERE)]) == len(addresses):
                break
        (peer_id,) = [line.removeprefix("Peer ID: ") for line in lines if line.startswith("Peer ID: ")]
        yield tuple(f"{line}/p2p/{peer_id}" for line in lines if line.startswith(HERE))
        process.kill()
    Path(control.removeprefix("/unix")).unlink(missing_ok=True)


def known(_: Context) -> CheckResult:
    """Stands for the coordinator's description."""
    return ok("known")


async def examine(
    *swarm_addresses: str, prepare: Callable[[Path], None] = as_it_is, listen: tuple[str, ...] = ()
) -> tuple[dict[str, StageResult], Context]:
    """All stages of the swarm, for a run whose keeper has these addresses."""
    options = Options(Path("unused"), listen=listen)
    context = Context(
        options,
        prepare_helper=prepare,
        timing=replace(LONG, daemon_s=HANGS_S) if prepare is doctor_mains.daemon_hangs else LONG,
    )
    context.description = RunDescription(RunConfig(), swarm_addresses, ip_address("127.0.0.1"), 0.0)
    stages = (Stage("requirements", known), DAEMON, KEEPER, *BEYOND_TCP)
    async with context.resources:
        found = {finding.stage: finding async for finding in run_stages(stages, context)}
    return found, context


async def test_a_keeper_answers_over_both_transports() -> None:
    """Daemon, TCP, QUIC and relay, as libp2p really does them."""
    with keeper_on(f"{HERE}/tcp/0", f"{HERE}/udp/0/quic-v1") as addresses:
        found, context = await examine(*addresses)
    assert {name: finding.verdict for name, finding in found.items()} == dict.fromkeys(found, OK)
    assert found["daemon"].outcome.data["addresses"]
    assert context.relays


async def test_a_run_without_quic_is_no_failure() -> None:
    """TCP is enough."""
    with keeper_on(f"{HERE}/tcp/0") as addresses:
        found, _ = await examine(*addresses)
    assert found["swarm-tcp"].verdict is OK
    assert found["swarm-quic"].verdict is SKIPPED


@pytest.mark.thorough
async def test_a_keeper_that_is_gone_fails() -> None:
    """Over TCP that is a failure with the port to open, over QUIC a warning; nothing is said of a relay."""
    with keeper_on(f"{HERE}/tcp/0", f"{HERE}/udp/0/quic-v1") as addresses:
        pass
    found, _ = await examine(*addresses)
    assert found["swarm-tcp"].verdict is FAILED
    assert "refused" in found["swarm-tcp"].outcome.found
    assert f"port {addresses[0].split('/')[4]}" in found["swarm-tcp"].outcome.remedy
    assert found["swarm-quic"].verdict is WARNING
    assert "no answer" in found["swarm-quic"].outcome.found
    assert found["relay"].verdict is SKIPPED


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("dial: all failed\n  * [/ip4/1.2.3.4/udp/9/quic-v1] timeout: no recent network activity", "no answer"),
        ("  * [/ip4/1.2.3.4/udp/9/quic-v1] timeout: handshake did not complete in time", "no answer"),
        ("  * [/ip4/1.2.3.4/tcp/9] dial tcp4 1.2.3.4:9: i/o timeout", "no answer"),
        ("  * [/ip4/1.2.3.4/tcp/9] dial backoff: context deadline exceeded", "no answer"),
        ("  * [/ip4/1.2.3.4/tcp/9] connection refused", "connection refused"),
    ],
)
def test_each_kind_of_silence_is_no_answer(said: str, told: str) -> None:
    """Whichever limit is over first, which depends on how busy the machine is."""
    assert describe(RuntimeError(said)) == told


async def test_another_peer_at_the_keepers_address_fails() -> None:
    """libp2p checks the identity that the address names."""
    with keeper_on(f"{HERE}/tcp/0") as addresses:
        stranger = addresses[0].partition("/p2p/")[0] + "/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
        found, _ = await examine(stranger)
    assert found["swarm-tcp"].verdict is FAILED
    assert "peer id mismatch" in found["swarm-tcp"].outcome.found


async def test_a_run_without_a_keeper_fails() -> None:
    """The coordinator is up, but knows no address."""
    found, _ = await examine()
    assert found["swarm-tcp"].verdict is FAILED
    assert "keeper has not started" in found["swarm-tcp"].outcome.found
    assert "keeper" in found["swarm-tcp"].outcome.remedy


async def test_a_port_that_is_taken_fails() -> None:
    """The daemon's own words say why."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found, _ = await examine(listen=(f"{HERE}/tcp/{taken.getsockname()[1]}",))
    assert found["daemon"].verdict is FAILED
    assert "--listen" in found["daemon"].outcome.remedy
    assert any("address already in use" in line for line in found["daemon"].outcome.data["log"])


@pytest.mark.parametrize(
    ("prepare", "word", "in_log"),
    [
        (doctor_mains.daemon_fails, "giving up", "cannot allocate a thread"),
        (doctor_mains.daemon_hangs, "does not start", "waiting for a lock"),
        (doctor_mains.daemon_is_for_another_machine, "incompatible", None),
    ],
)
async def test_a_daemon_that_does_not_start_fails(
    prepare: Callable[[Path], None], word: str, in_log: str | None
) -> None:
    """With what it said itself, also if it hangs and does not end when told to; the swarm is not tried then."""
    found, _ = await examine(f"{HERE}/tcp/9/p2p/Qm", prepare=prepare)
    daemon = found["daemon"]
    assert daemon.verdict is FAILED
    assert word in daemon.outcome.found
    assert daemon.outcome.remedy
    assert in_log is None or any(in_log in line for line in daemon.outcome.data["log"])
    assert found["swarm-tcp"].verdict is SKIPPED


async def test_a_helper_that_cannot_load_hivemind_fails() -> None:
    """The installation is at fault then."""
    context = Context(Options(Path("unused")), prepare_helper=doctor_mains.dies)
    async with context.resources:
        outcome = await check_daemon(context)
    assert outcome.verdict is FAILED
    assert "Install manyhands again" in outcome.remedy


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
        outcome = await REACHABILITY.examine(context)
        assert outcome.verdict is Verdict.OK
        assert context.reachable is True
        assert outcome.data["position"] == "open"
        assert "not a public address" in outcome.found
        assert outcome.data["ways"] == ["TCP"]
        with socket.create_server(("127.0.0.1", outcome.data["port"])):
            pass


async def test_a_machine_that_is_not_dialled_is_not(tmp_path: Path) -> None:
    """A coordinator whose connection never arrives, as behind a firewall."""
    async with strange_coordinator(tmp_path, SilentCoordinator(REPLY)) as link:
        client = await ControlClient.connect(link, time.time)
        context = context_with(client, dial_back_s=0.2)
        outcome = await REACHABILITY.examine(context)
        await client.close()
    assert outcome.verdict is Verdict.WARNING
    assert context.reachable is False
    assert "through a relay" in outcome.remedy


async def test_a_port_that_is_taken_cannot_be_reached(tmp_path: Path) -> None:
    """The person asked for a port that another program has."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(tmp_path) as coordinator, connected(coordinator) as client:
            outcome = await REACHABILITY.examine(context_with(client, listen=(f"/ip4/0.0.0.0/tcp/{port}",)))
    assert outcome.verdict is Verdict.FAILED
    assert str(port) in outcome.found
    assert "--listen" in outcome.remedy


@pytest.mark.parametrize(
    ("dialled", "observed", "own", "position"),
    [
        (True, ip_address("2001:db8::5"), OWN, NetworkPosition.OPEN),
        (False, ip_address("2001:db8::5"), OWN, NetworkPosition.FIREWALL),
        (True, PUBLIC, OWN, NetworkPosition.FORWARDED),
        (False, PUBLIC, OWN, NetworkPosition.NAT),
        (False, PUBLIC, BEHIND_CARRIER, NetworkPosition.CARRIER_NAT),
    ],
)
def test_what_stands_before_the_machine(
    dialled: bool, observed: object, own: frozenset[object], position: NetworkPosition
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
