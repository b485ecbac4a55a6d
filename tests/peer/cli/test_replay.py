"""Several nodes' logs on one timeline."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from auth.errors import ConfigError
from peer.cli.doctor import app as doctor_app
from peer.cli.replay import app
from peer.reporting.event_log import (
    MOST_BYTES,
    AnyEvent,
    ChildEnded,
    EventLog,
    GroupMet,
    ProcessStarted,
    RoundEnded,
    StepTaken,
    Suspected,
)

KEEPER, ALICE, BOB = "12D3Keeper0", "12D3Alice00", "12D3Bob0000"


def write(folder: Path, process: str, events: list[tuple[float, AnyEvent]]) -> None:
    times = iter([at for at, _ in events])
    log = EventLog(folder, process, lambda: next(times))
    for _, event in events:
        log.add(event)


def group(number: int) -> GroupMet:
    return GroupMet(group=f"{number:08x}ff", peers=(KEEPER, ALICE, BOB), shares=(2, 1, 1))


def started(peer: str, role: str = "trainer") -> ProcessStarted:
    return ProcessStarted(software="1.0", role=role, peer=peer)


def step(number: int) -> StepTaken:
    return StepTaken(era=0, step=number, samples=8, group_samples=24, peers=3)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """A run, and two devices: Alice's clock is an hour ahead, and Bob has no group in common with anybody."""
    write(
        tmp_path / "run" / "events",
        "keeper",
        [(100, started(KEEPER, "keeper")), (110, group(1)), (111, step(1)), (120, group(2)), (121, step(2))],
    )
    failed = RoundEnded(step=2, outcome="failed", seconds=3.0, peers=0, samples=0, cause="it was too slow")
    write(
        tmp_path / "alice" / "data" / "events",
        "worker",
        [(3700.5, started(ALICE)), (3710.5, group(1)), (3711.5, step(1)), (3720.5, group(2)), (3725.0, failed)],
    )
    detail = "sent a gradient 40 times the largest"
    write(
        tmp_path / "bob" / "data" / "events",
        "worker",
        [(105, started(BOB)), (112, Suspected(peer=ALICE, suspicion="gradient", step=1, detail=detail))],
    )
    return [tmp_path / name for name in ("run", "alice", "bob")]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_all_nodes_are_on_one_clock(nodes: list[Path]) -> None:
    """By the groups in which they met; a peer whose log is here has its node's name."""
    lines = run(*nodes).stdout.splitlines()
    assert lines[0] == "# alice: its clock is 3600.500 s ahead, by 2 groups in common."
    assert [line.split("  ")[0][-12:] for line in lines[1:]] == sorted(line.split("  ")[0][-12:] for line in lines[1:])
    assert "group 00000001 of 3: run 50%, alice 25%, bob 25%" in lines[4]
    assert any("bob worker" in line and "suspects alice of gradient" in line for line in lines)
    assert lines[-1].endswith("round for step 2 after 3.0 s: failed, it was too slow")


def test_a_step_can_be_looked_at_alone(nodes: list[Path]) -> None:
    """From when the first had taken the step before until the last one took it; peers have their nodes' names."""
    assert "group 00000002 of 3: run 50%, alice 25%, bob 25%" in run(*nodes, "--step", 2).stdout
    shown = [json.loads(line) for line in run(*nodes, "--step", 2, "--json").stdout.splitlines()]
    assert [(line["node"], line["kind"]) for line in shown] == [
        ("run", "step"),
        ("alice", "step"),
        ("bob", "suspicion"),
        ("run", "group"),
        ("alice", "group"),
        ("run", "step"),
    ]


def test_kinds_can_be_chosen(nodes: list[Path]) -> None:
    """Each by its name."""
    shown = [json.loads(line) for line in run(*nodes, "--kind", "suspicion", "--json").stdout.splitlines()]
    assert [line["kind"] for line in shown] == ["suspicion"]


def test_a_support_bundle_is_shown(nodes: list[Path], tmp_path: Path) -> None:
    """As a volunteer's command has written it."""
    out = tmp_path / "alices.zip"
    arguments = ["support-bundle", "--no-doctor", "--state-dir", str(nodes[1]), "--out", str(out)]
    assert CliRunner().invoke(doctor_app, arguments, catch_exceptions=False).exit_code == 0
    lines = run(nodes[0], out).stdout.splitlines()
    assert lines[0].startswith("# alices: its clock is 3600.500 s ahead")
    assert sum("alices worker" in line for line in lines) == 5


def test_a_users_name_spoils_no_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redaction changes the texts of events only."""
    monkeypatch.setattr("getpass.getuser", lambda: "worker")
    write(tmp_path / "data" / "events", "agent", [(1, ChildEnded(child="worker", cause="killed by worker"))])
    out = tmp_path / "bundle.zip"
    arguments = ["support-bundle", "--no-doctor", "--state-dir", str(tmp_path), "--out", str(out)]
    CliRunner().invoke(doctor_app, arguments, catch_exceptions=False)
    assert "the <user> ended: killed by <user>" in run(out).stdout


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "foreign"])
def test_what_is_no_log_is_said_in_one_sentence(tmp_path: Path, kind: str) -> None:
    """A path that is not there, an empty folder, a text, an archive of something else."""
    source = tmp_path / "source"
    if kind == "empty":
        source.mkdir()
    elif kind == "text":
        source.write_text("no archive")
    elif kind == "foreign":
        with zipfile.ZipFile(source, "w") as bundle:
            bundle.writestr("events/../../worker.jsonl.exe", "")
    with pytest.raises(ConfigError, match=r"holds no log of events|cannot be read as an archive"):
        run(source)


def test_an_archive_cannot_fill_the_memory(tmp_path: Path) -> None:
    """Of a file that unpacks to many times its size only the beginning is read."""
    source = tmp_path / "bomb.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("events/worker.jsonl", bytes(32 * MOST_BYTES))
    tracemalloc.start()
    assert run(source).stdout == "No event is left to show.\n"
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 * MOST_BYTES
