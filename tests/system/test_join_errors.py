"""Joining that fails, as a person meets it: one clear sentence and an exit code of its own.

Each refusal of the coordinator has its own error in `tests/coordinator/control/test_servicer.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from auth.errors import (
    FingerprintError,
    LinkError,
    ManyhandsError,
    NotInvitedError,
    UnknownInviteError,
    UnreachableError,
)
from auth.invite_codes import new_invite_code
from auth.join_link import JoinLink
from peer.cli.join import WHO_LEARNS_THE_ADDRESS
from tests.support.commands import Site
from tests.support.ports import free_ports
from tests.support.small_run import HOST
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A run whose service is up, without a keeper: nobody gets as far as training here."""
    made = Site(tmp_path_factory.mktemp("served"))
    made.serve_without_keeper()
    yield made
    made.close()


def assert_refused(link: JoinLink | str, state_dir: Path, error: type[ManyhandsError], word: str) -> None:
    """A real `manyhands join` ends with one sentence that names the matter, after the one that a new device reads."""
    result = subprocess.run(
        [sys.executable, "-m", "manyhands", "join", str(link), "--state-dir", str(state_dir), "--no-panel"],
        env=os.environ | {"MANYHANDS_INVITE": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == error.exit_code, result.stderr
    assert result.stdout == ""
    *said, refusal = result.stderr.splitlines()
    assert said in ([], [WHO_LEARNS_THE_ADDRESS])
    assert refusal.startswith("manyhands: ")
    assert word in refusal


def test_without_an_invite(site: Site, tmp_path: Path) -> None:
    """An unknown device that brings no code is told to ask for one."""
    assert_refused(site.run.join_link, tmp_path, NotInvitedError, "invite")


def test_unknown_invite(site: Site, tmp_path: Path) -> None:
    """A code that was never given is refused; it comes with the address of the invitation's page."""
    address = f"{site.run.settings.web_address}/join#invite={new_invite_code()}"
    assert_refused(address, tmp_path, UnknownInviteError, "invite")


def test_wrong_fingerprint(site: Site, tmp_path: Path) -> None:
    """A link that names another certificate leads nowhere."""
    link = replace(site.run.join_link, fingerprint="0" * 64)
    assert_refused(link, tmp_path, FingerprintError, "certificate")


def test_nobody_answers(site: Site, tmp_path: Path) -> None:
    """A coordinator that is not running is told apart from one that refuses."""
    (port,) = free_ports(HOST, 1)
    assert_refused(replace(site.run.join_link, port=port), tmp_path, UnreachableError, "running")


@pytest.mark.parametrize("link", ["nonsense", "https://example.org/run", "manyhands://host:7443/run#sha256=12"])
def test_malformed_link(link: str, tmp_path: Path) -> None:
    """What is no join link is said to be none."""
    assert_refused(link, tmp_path, LinkError, "link")
