"""What a person is told of versions."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from auth.errors import ConfigError, VersionError
from peer.config.run import RunConfig
from peer.runtime.software import DISTRIBUTION, install_commands, update_command
from peer.runtime.version import commit_of, own_commit, require_understood, software_version, update_notice
from tests.support.programs import require

COMMIT = "95390707" * 5
ADDRESS = "https://run.example/software/manyhands_swarm-99.0-py3-none-any.whl#sha256=" + "0" * 64


@pytest.mark.parametrize(
    ("theirs", "ours", "told"),
    [
        ("0.2.0", "0.1.0", True),
        ("0.10.0", "0.9.0", True),
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.2.0", False),
        ("", "0.1.0", False),
        ("unknown", "0.1.0", False),
        ("0.2.0", "unknown", False),
        ("9" * 40, "0.1.0", False),
        ("1.0\x1b[2J", "0.1.0", False),
    ],
)
def test_a_newer_version_is_told_and_nothing_else(theirs: str, ours: str, told: bool) -> None:
    """What a coordinator says is compared as a version, and not shown if it is none."""
    notice = update_notice(theirs, ours, "")
    assert (notice is not None) is told
    assert notice is None or (f"manyhands {theirs}" in notice and f"you have {ours}" in notice)


def test_the_notice_has_the_command_that_updates() -> None:
    """It brings this very environment up to date from the run, by the digest that the coordinator gave."""
    notice = update_notice("99.0", "0.1.0", ADDRESS)
    assert notice is not None
    assert notice.endswith(f": {update_command(ADDRESS)}")
    assert update_command(ADDRESS) == " && ".join(install_commands(ADDRESS, sys.prefix))


@pytest.mark.parametrize(
    "address",
    [
        "",
        ADDRESS.replace("https", "file"),
        ADDRESS.replace("run.example", "run.example;reboot"),
        ADDRESS.replace("run.example", "$(reboot)"),
        ADDRESS.replace("99.0", "99.0'"),
        ADDRESS.replace("99.0", "../x"),
        ADDRESS.removesuffix("0"),
        ADDRESS + "\x1b[2J",
        ADDRESS + "\n",
        "https://" + "x" * 3000 + ADDRESS.removeprefix("https://"),
    ],
)
def test_an_address_that_is_none_is_not_shown(address: str) -> None:
    """No coordinator puts a command of its own together: then the page about taking part is named."""
    notice = update_notice("99.0", "0.1.0", address)
    assert notice is not None
    assert notice.endswith("the run's page about taking part says how.")


def test_an_installation_knows_its_commit(tmp_path: Path) -> None:
    """A coordinator's wheel has it in a file, an installation from a repository in the record of its origin."""
    origin = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
    assert commit_of({"COMMIT": COMMIT}.get, tmp_path) == COMMIT
    assert commit_of({"direct_url.json": json.dumps(origin)}.get, tmp_path) == COMMIT
    assert commit_of({"direct_url.json": '{"url": "file:///x", "dir_info": {}}'}.get, tmp_path) == ""
    assert commit_of({}.get, tmp_path) == ""


def test_a_checkout_knows_its_commit(tmp_path: Path) -> None:
    """By Git, whatever was installed; one that Git cannot read has none."""
    require("git")
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    for words in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    said = subprocess.run(["git", "-C", tmp_path, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert commit_of({"COMMIT": COMMIT}.get, tmp_path) == said.stdout.strip()
    (tmp_path / ".git" / "HEAD").unlink()
    assert commit_of({}.get, tmp_path) == ""


def test_this_program_knows_its_version() -> None:
    """The one that is installed, with the commit as a local label, which orders no versions."""
    commit = own_commit()
    assert software_version() == version(DISTRIBUTION) + (f"+g{commit[:8]}" if commit else "")
    assert update_notice("0.1.0+g95390707", "0.1.0+g370b6063", "") is None
    notice = update_notice("0.2.0+g95390707", "0.1.0+g370b6063", "") or ""
    assert "manyhands 0.2.0+g95390707, and you have 0.1.0+g370b6063" in notice


def test_a_run_that_needs_the_newer_version_says_so() -> None:
    """A setting that this program does not know is the coordinator's newer version, if it has one, else a mistake."""
    require_understood(RunConfig().to_json(), "99.0", ADDRESS)
    strange = '{"run": {"surprise": 1}}'
    with pytest.raises(VersionError, match=r"needs a newer version.*run\.surprise.*manyhands 99\.0.*sha256sum"):
        require_understood(strange, "99.0", ADDRESS)
    with pytest.raises(ConfigError, match=r"run\.surprise"):
        require_understood(strange, software_version(), ADDRESS)
