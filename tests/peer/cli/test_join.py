"""`manyhands join`'s options; joining itself is tested with real processes in tests/system."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, StorageError
from auth.join_link import JoinLink
from peer.agent.options import AgentOptions
from peer.cli.join import (
    INVITE_VARIABLE,
    STATE_DIR_VARIABLE,
    Format,
    _take_part,
    app,
    default_state_dir,
    find_invite,
    only_one,
)

LINK = JoinLink("example.org", 7443, "demo", "ab" * 32)


def test_help_explains_every_option_with_an_example() -> None:
    """The help names each option and ends with a command to copy."""
    shared = {"--invite", "--threads", "--max-hours", "--state-dir", "--log-format"}
    for command, own in {"join": {"--device", "--precision", "--microbatch", "--client-mode"}, "assist": set()}.items():
        output = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        text = re.sub(r"\x1b\[[0-9;]*m", "", output)
        assert all(option in text for option in shared | own)
        assert f"Example: manyhands {command}" in text


def test_listening_and_client_mode_exclude_each_other(tmp_path: Path) -> None:
    """A peer that accepts no connections cannot be told where to listen."""
    arguments = ["join", str(LINK), "--state-dir", str(tmp_path), "--client-mode", "--listen", "/ip4/127.0.0.1/tcp/0"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)


def test_runs_do_not_share_an_identity() -> None:
    """Each run, and each coordinator of a run of that name, has a directory of its own."""
    other = JoinLink("example.org", 7443, "demo", "cd" * 32)
    assert default_state_dir(LINK) != default_state_dir(other)
    assert default_state_dir(LINK).name.startswith("demo-")


def test_invite_comes_from_option_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given on the command line wins; a known device needs none; no child process inherits the code."""
    for given, expected in (("given", "given"), ("", "from-environment")):
        monkeypatch.setenv(INVITE_VARIABLE, "from-environment")
        assert find_invite(given, known_device=False) == expected
        assert INVITE_VARIABLE not in os.environ
    assert find_invite("", known_device=True) == ""


def test_a_device_that_no_machine_has_is_refused_at_once(tmp_path: Path) -> None:
    """Before anything is asked of the coordinator; the directory is not made."""
    state_dir = tmp_path / "new"
    result = CliRunner().invoke(app, ["join", str(LINK), "--state-dir", str(state_dir), "--device", "cuda:one"])
    assert isinstance(result.exception, ConfigError)
    assert "`--device` (cuda:one)" in str(result.exception)
    assert not state_dir.exists()


def test_state_dir_comes_from_the_environment_too(tmp_path: Path) -> None:
    """A notebook says once, for all commands, where the device is kept."""
    (tmp_path / "file").touch()
    below_a_file = tmp_path / "file" / "device"
    result = CliRunner().invoke(app, ["join", str(LINK)], env={STATE_DIR_VARIABLE: str(below_a_file)})
    assert isinstance(result.exception, StorageError)
    assert str(below_a_file) in str(result.exception)


def test_one_agent_per_identity(tmp_path: Path) -> None:
    """A second agent on the same directory is refused in one sentence; afterwards the place is free."""
    with only_one(tmp_path), pytest.raises(StorageError, match="--state-dir"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


class Terminal(io.StringIO):
    """A terminal for what is printed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("log_format", "told"), [("text", True), ("json", False)])
def test_a_person_who_leaves_is_told_how_to_go_on(
    log_format: Format, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal; a program that reads the lines is not. Temporary files are gone by then."""
    places = []

    async def stay(*_: object) -> None:
        places.append(Path(tempfile.mkdtemp()))

    monkeypatch.setattr("peer.cli.join._join", stay)
    monkeypatch.setattr("peer.cli.join.name_process", lambda _: None)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    options = AgentOptions(LINK, tmp_path / "device", invite="AAAAA-BBBBB")
    _take_part(options, "", log_format, no_panel=False)
    assert ("run the same command again" in terminal.getvalue()) == told
    assert not places[0].exists()
