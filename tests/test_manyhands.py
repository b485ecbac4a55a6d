"""The front door: quick help, our own packages, one sentence and an exit code for every error."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import manyhands
from auth.errors import ConfigError
from peer.runtime.software import DISTRIBUTION

HEAVY = ("torch", "hivemind", "transformers", "grpc", "sqlalchemy", "fastapi", "pydantic")


def run(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A real `python -m manyhands` process, started in `directory`."""
    return subprocess.run(
        [sys.executable, "-m", "manyhands", *arguments], capture_output=True, text=True, check=False, cwd=directory
    )


def test_overview_names_every_command_and_loads_none() -> None:
    """`manyhands --help` shows all commands without importing what they need, so that it answers at once."""
    script = (
        "import sys, manyhands; sys.argv = ['manyhands', '--help']\n"
        "try: manyhands.main()\n"
        f"finally: sys.stderr.write(','.join(sys.modules.keys() & set({HEAVY!r})))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(name in result.stdout for name in manyhands.COMMANDS)
    assert result.stderr == ""


def test_version_is_the_distributions() -> None:
    """`--version` prints what pip knows of the installation."""
    assert run("--version").stdout == f"manyhands {version(DISTRIBUTION)}\n"


@pytest.mark.parametrize("name", sorted(manyhands.COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    """Each command, and each below it, explains itself with an example that begins with its own name."""
    root = get_command(manyhands.build_app([name]))
    todo = [(name, root.commands[name])]  # type: ignore[attr-defined]
    while todo:
        path, command = todo.pop()
        below = getattr(command, "commands", None)
        if below is not None:
            todo += [(f"{path} {child}", below[child]) for child in below]
            continue
        assert command.help, path
        assert f"Example: manyhands {path}" in command.epilog
        assert CliRunner().invoke(manyhands.build_app([name]), [*path.split(), "--help"]).exit_code == 0


def test_unknown_command_is_a_usage_error() -> None:
    """A misspelt command exits with 2 and suggests the right one."""
    result = run("joni")
    assert result.returncode == 2
    assert "join" in result.stderr


def test_error_is_one_sentence_and_its_own_exit_code(tmp_path: Path) -> None:
    """What a person can mend is one line on stderr, nothing on stdout, and the error's exit code."""
    result = run("coordinator", "status", str(tmp_path / "nowhere"))
    assert result.returncode == ConfigError.exit_code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "nowhere" in result.stderr


def test_a_stranger_in_place_of_our_package_is_refused(tmp_path: Path) -> None:
    """A package `auth` that lies in the way is named and nothing of it is run."""
    stranger = tmp_path / "auth"
    stranger.mkdir()
    (stranger / "__init__.py").write_text("raise SystemExit('a stranger ran')")
    result = run("--version", directory=tmp_path)
    assert result.returncode == 1
    assert f"`auth` is imported from {stranger}" in result.stderr
    assert "a stranger ran" not in result.stderr


def test_missing_extra_says_what_to_install() -> None:
    """The operator's commands without the operator's libraries name the extra to install."""
    script = (
        "import sys, manyhands; sys.modules['sqlalchemy'] = None\n"
        "sys.argv = ['manyhands', 'coordinator', 'status', 'x']; manyhands.main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "[coordinator]" in result.stderr
