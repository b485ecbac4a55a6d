"""The front door: quick help, our own packages, one sentence and an exit code for every error."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

import manyhands
from auth.errors import ConfigError
from coordinator.cli.main import COMMANDS
from docs.reference.commands import every_command
from peer.runtime.version import software_version

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
    assert run("--version").stdout == f"manyhands {software_version()}\n"


@pytest.mark.parametrize("path", sorted(every_command()))
def test_every_command_has_help_with_an_example(path: str) -> None:
    """Each command, and each below it, explains itself with an example that begins with its own name."""
    command = every_command()[path]
    assert command.help
    assert f"Example: {path}" in command.epilog
    assert CliRunner().invoke(manyhands.build_app(), [*path.split()[1:], "--help"]).exit_code == 0


def test_the_operators_overview_names_each_command_of_its_modules_in_their_words() -> None:
    """No command is left out, and what the overview says of one is how its own help begins."""
    apps = {entry.module: importlib.import_module(entry.module).app for entry in COMMANDS.values()}
    below = {name: command for app in apps.values() for name, command in get_group(app).commands.items()}
    assert below.keys() == COMMANDS.keys()
    for name, entry in COMMANDS.items():
        assert below[name].help.startswith(entry.summary[:-1])


def test_one_commands_libraries_are_not_loaded_for_another() -> None:
    """Who serves a run for weeks keeps nothing in memory of backups, evaluations or the web's API."""
    script = "import sys, coordinator.cli.serve; print(*sys.modules.keys() & {'fastapi', 'grpc', 'numpy'})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_a_shell_completes_commands_and_options_below_a_group() -> None:
    """Nothing but the command in question is imported for that."""
    words = {
        "COMP_WORDS": "manyhands coordinator backup --no-",
        "COMP_CWORD": "3",
        "_MANYHANDS_COMPLETE": "complete_bash",
    }
    script = "import sys, manyhands; sys.argv = ['manyhands']; manyhands.main()"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ | words
    )
    assert result.stdout.split() == ["--no-checkpoints"]


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
