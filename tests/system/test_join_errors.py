"""Every way in which joining can fail, as a person meets it: one clear sentence and an exit code of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from auth.errors import (
    ExpiredInviteError,
    FingerprintError,
    LinkError,
    NotInvitedError,
    RevokedError,
    UnknownInviteError,
    UnreachableError,
    UsedInviteError,
)
from auth.invite_codes import new_invite_code
from auth.join_link import JoinLink
from auth.keys import DeviceKey
from coordinator.members.membership import Membership
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from peer.cli.join import WHO_LEARNS_THE_ADDRESS
from tests.support.ports import free_ports
from tests.support.small_run import HOST, make_small_run
from tests.support.waiting import PATIENCE_S, wait_until

DAY_S = 86_400.0


@dataclass
class Served:
    """A run whose service is up, and the operator's hand on its members."""

    directory: RunDirectory
    membership: Membership

    def device(self, path: Path) -> DeviceKey:
        """The key that `manyhands join --state-dir PATH` will use."""
        path.mkdir(mode=0o700)
        return DeviceKey.load_or_create(path / "device.key")


def membership_of(directory: RunDirectory, ahead_s: float = 0.0) -> Membership:
    """The run's members, by a clock that is ahead."""
    database = Database(open_engine(directory.database_url))
    return Membership(database, directory.authority, directory.config.run.name, 3600, lambda: time.time() + ahead_s)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A real coordinator service, without a keeper: nobody gets as far as training here."""
    base = tmp_path_factory.mktemp("served")
    directory = make_small_run(base)
    log_path = base / "serve.log"
    with log_path.open("w") as log:
        command = [sys.executable, "-m", "manyhands", "coordinator", "serve", str(directory.path), "--service-only"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    wait_until(
        "the service is up or has ended",
        lambda: "Join link:" in log_path.read_text() or process.poll() is not None,
        log_path,
    )
    assert process.poll() is None, log_path.read_text()
    yield Served(directory, membership_of(directory))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=PATIENCE_S)


def join(link: JoinLink | str, state_dir: Path, invite: str = "") -> subprocess.CompletedProcess[str]:
    """A real `manyhands join` that nobody answers questions for."""
    return subprocess.run(
        [sys.executable, "-m", "manyhands", "join", str(link), "--state-dir", str(state_dir), "--no-panel"],
        env=os.environ | {"MANYHANDS_INVITE": invite},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def assert_refused(result: subprocess.CompletedProcess[str], exit_code: int, word: str) -> None:
    """One sentence on stderr that names the matter, and for a new device before it who learns its address."""
    assert result.returncode == exit_code, result.stderr
    assert result.stdout == ""
    *said, refusal = result.stderr.splitlines()
    assert said in ([], [WHO_LEARNS_THE_ADDRESS])
    assert refusal.startswith("manyhands: ")
    assert word in refusal


def test_without_an_invite(served: Served, tmp_path: Path) -> None:
    """An unknown device that brings no code is told to ask for one."""
    result = join(served.directory.join_link, tmp_path / "new")
    assert_refused(result, NotInvitedError.exit_code, "invite")


def test_unknown_invite(served: Served, tmp_path: Path) -> None:
    """A code that was never given is refused."""
    result = join(served.directory.join_link, tmp_path / "new", new_invite_code())
    assert_refused(result, UnknownInviteError.exit_code, "invite")


def test_used_invite(served: Served, tmp_path: Path) -> None:
    """A code that served one device does not serve another."""
    code = served.membership.invite("ursula")[0]
    served.membership.join(served.device(tmp_path / "first").public_key, code)
    result = join(served.directory.join_link, tmp_path / "second", code)
    assert_refused(result, UsedInviteError.exit_code, "used")


def test_expired_invite(served: Served, tmp_path: Path) -> None:
    """A code whose days are over is refused; here it comes with the address of the invitation's page."""
    code = membership_of(served.directory, ahead_s=-10 * DAY_S).invite("emil", days=7)[0]
    result = join(f"{served.directory.settings.web_address}/join#invite={code}", tmp_path / "new")
    assert_refused(result, ExpiredInviteError.exit_code, "expired")


def test_revoked_member(served: Served, tmp_path: Path) -> None:
    """A member who was revoked does not come back, neither as a known device nor with another code."""
    code = served.membership.invite("rudi")[0]
    served.membership.join(served.device(tmp_path / "known").public_key, code)
    second_code = served.membership.invite("rudi")[0]
    served.membership.revoke("rudi", "a test")
    for state_dir, invite in ((tmp_path / "known", ""), (tmp_path / "other", second_code)):
        assert_refused(join(served.directory.join_link, state_dir, invite), RevokedError.exit_code, "operator")


def test_wrong_fingerprint(served: Served, tmp_path: Path) -> None:
    """A link that names another certificate leads nowhere, and the code is not sent."""
    code = served.membership.invite("franz")[0]
    result = join(replace(served.directory.join_link, fingerprint="0" * 64), tmp_path / "new", code)
    assert_refused(result, FingerprintError.exit_code, "certificate")
    served.membership.join(served.device(tmp_path / "later").public_key, code)  # still unused


@pytest.mark.parametrize("link", ["nonsense", "https://example.org/run", "manyhands://host:7443/run#sha256=12"])
def test_malformed_link(link: str, tmp_path: Path) -> None:
    """What is no join link is said to be none."""
    assert_refused(join(link, tmp_path / "new"), LinkError.exit_code, "link")


def test_nobody_answers(served: Served, tmp_path: Path) -> None:
    """A coordinator that is not running is told apart from one that refuses."""
    (port,) = free_ports(HOST, 1)
    result = join(replace(served.directory.join_link, port=port), tmp_path / "new")
    assert_refused(result, UnreachableError.exit_code, "running")
