"""`manyhands doctor`, as a person types it; a whole run is examined in tests/system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from auth.errors import LinkError, UnfitError
from auth.join_link import JoinLink
from peer.cli.doctor import make_options
from peer.cli.join import default_state_dir
from peer.doctor.checkup import WITH_LINK, WITHOUT_LINK
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("forked")
FAST = ("--device", "cpu", "--threads", "1", "--microbatch", "1")


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A real process."""
    command = [sys.executable, "-m", "manyhands", "doctor", *arguments, *FAST]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=os.environ | {"HTTPS_PROXY": ""}
    )


@pytest.mark.thorough
def test_without_a_link_the_machine_is_examined(tmp_path: Path) -> None:
    """A line for each of its stages, and what it would compute; the directory is not made."""
    result = doctor("--state-dir", str(tmp_path / "new"))
    assert result.returncode == 0, result.stderr
    *lines, last = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [stage.name for stage in WITHOUT_LINK]
    assert last.startswith("This machine would compute about ")
    assert not (tmp_path / "new").exists()
    assert result.stderr == ""


@pytest.mark.thorough
def test_a_coordinator_that_is_not_there(tmp_path: Path) -> None:
    """Every stage has its finding, as JSON here, and the exit code says that one has failed."""
    (port,) = free_ports("127.0.0.1", 1)
    result = doctor(f"manyhands://127.0.0.1:{port}/run#sha256={'ab' * 32}", "--state-dir", str(tmp_path), "--json")
    assert result.returncode == UnfitError.exit_code
    *findings, last = map(json.loads, result.stdout.splitlines())
    assert [finding["stage"] for finding in findings] == [stage.name for stage in WITH_LINK]
    assert [finding["stage"] for finding in findings if finding["verdict"] == "failed"] == ["tcp"]
    assert last["conclusion"]["fit"] is False
    assert result.stderr.startswith("manyhands: 1 of ")
    assert result.stderr.count("\n") == 1


def test_options_are_those_of_joining(tmp_path: Path) -> None:
    """The same directory for the same link, and the same place to listen."""
    link = JoinLink("example.org", 7443, "demo", "ab" * 32)
    options = make_options(str(link), None)
    assert options.state_dir == default_state_dir(link)
    assert options.listen == ()
    given = make_options(None, tmp_path, "cpu", 2, 8, ["/ip4/0.0.0.0/tcp/31338"])
    assert (given.state_dir, given.threads, given.microbatch_size) == (tmp_path, 2, 8)
    assert given.listen == ("/ip4/0.0.0.0/tcp/31338",)


def test_a_malformed_link_is_said_to_be_none() -> None:
    """Before anything is examined."""
    with pytest.raises(LinkError):
        make_options("nonsense", None)
