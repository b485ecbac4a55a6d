"""Joining by a login, as a person meets it: a real service, a real provider, and a real `manyhands join`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx2
import pytest
import yaml

from auth.errors import ConfigError, LoginDeniedError
from coordinator.run.directory import RunDirectory
from peer.cli.join import WHO_LEARNS_THE_ADDRESS
from tests.support.commands import Site
from tests.support.openid_provider import OpenIdProvider, running
from tests.support.waiting import PATIENCE_S, wait_until

MANYHANDS = (sys.executable, "-m", "manyhands")


@dataclass
class Served:
    """A run whose service is up, and its provider."""

    directory: RunDirectory
    provider: OpenIdProvider


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service without a keeper, whose volunteers log in with a provider on this machine."""
    site = Site(tmp_path_factory.mktemp("served"))
    settings = site.run.path / "settings.yaml"
    with running(OpenIdProvider()) as provider:
        content = yaml.safe_load(settings.read_text()) | {"providers": {"test": provider.settings()}}
        settings.write_text(yaml.safe_dump(content))
        command = [*MANYHANDS, "coordinator", "allow", str(site.run.path), "test:alice"]
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        site.serve_without_keeper()
        yield Served(site.run, provider)
        site.close()


class Joining:
    """A `manyhands join` that nobody answers questions for."""

    def __init__(self, served: Served, state_dir: Path, *options: str, log_format: str = "json") -> None:
        link = str(served.directory.join_link)
        command = [*MANYHANDS, "join", link, "--state-dir", str(state_dir), "--log-format", log_format, *options]
        self.process = subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name != "MANYHANDS_INVITE"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Its next line."""
        stream: IO[str] | None = self.process.stdout
        assert stream is not None
        return stream.readline()

    def prompt(self) -> dict[str, str]:
        """What it tells its person."""
        shown: dict[str, str] = json.loads(self.line())
        assert shown["event"] == "LoginPrompt"
        return shown

    def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


def enter(served: Served, prompt: dict[str, str], username: str, approve: str = "yes") -> None:
    """As the person does in a browser, at the address that was shown."""
    form = {"user_code": prompt["user_code"], "username": username, "approve": approve}
    assert httpx2.post(prompt["address"], data=form).text == "decided"


def assert_refused(ended: tuple[int, str], exit_code: int, word: str) -> None:
    """One sentence that names the matter, after the one that a new device reads first."""
    code, said = ended
    assert code == exit_code, said
    *before, refusal = said.splitlines()
    assert before in ([], [WHO_LEARNS_THE_ADDRESS])
    assert refusal.startswith("manyhands: ")
    assert word in refusal


def test_login_admits_the_device_for_good(served: Served, tmp_path: Path) -> None:
    """Code and address are shown, the person agrees elsewhere, and the device is in; later it needs no login."""
    joining = Joining(served, tmp_path / "alice")
    enter(served, joining.prompt(), "Alice")
    token = tmp_path / "alice" / "token.jwt"
    wait_until(
        "the device is in or the command has ended", lambda: token.exists() or joining.process.poll() is not None
    )
    assert joining.process.poll() is None, joining.end()
    joining.process.send_signal(signal.SIGINT)
    joining.end()
    command = [*MANYHANDS, "coordinator", "members", str(served.directory.path), "--json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S).stdout)
    assert {row["name"]: (row["devices"], row["accounts"]) for row in rows}["test:alice"] == (1, ["test:Alice"])
    asked = len(served.provider.asked)
    again = Joining(served, tmp_path / "alice")
    again.line()
    again.process.send_signal(signal.SIGINT)
    again.end()
    assert len(served.provider.asked) == asked


def test_refused_login(served: Served, tmp_path: Path) -> None:
    """Who says no at the provider ends the command."""
    joining = Joining(served, tmp_path / "new")
    enter(served, joining.prompt(), "Alice", approve="no")
    assert_refused(joining.end(), LoginDeniedError.exit_code, "Test Login")


def test_unknown_provider(served: Served, tmp_path: Path) -> None:
    """`--login` with a name that the run does not know."""
    assert_refused(Joining(served, tmp_path / "new", "--login", "hf").end(), ConfigError.exit_code, "test")


def test_interrupt_while_waiting(served: Served, tmp_path: Path) -> None:
    """Ctrl-C before the login is complete ends the command in order, and nothing is kept."""
    joining = Joining(served, tmp_path / "new")
    joining.prompt()
    joining.process.send_signal(signal.SIGINT)
    assert joining.end() == (0, f"{WHO_LEARNS_THE_ADDRESS}\n")
    assert not (tmp_path / "new" / "token.jwt").exists()


def test_notebook_gets_a_link(served: Served, tmp_path: Path) -> None:
    """In a notebook the address is a link in the panel's place."""
    joining = Joining(served, tmp_path / "new", log_format="notebook")
    panel = json.loads(joining.line())["panel"]
    assert f'href="{served.provider.url}/activate?user_code=' in panel["text/html"]
    assert "Test Login" in panel["text/plain"]
    joining.process.send_signal(signal.SIGINT)
    assert joining.end()[0] == 0


def test_entry_of_an_unknown_provider(served: Served) -> None:
    """The operator is told at once that nobody could log in by it."""
    command = [*MANYHANDS, "coordinator", "allow", str(served.directory.path), "hf:alice"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert_refused((result.returncode, result.stderr), ConfigError.exit_code, "'hf'")
