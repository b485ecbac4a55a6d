"""A run goes to another operator: keys, database and checkpoints in one file, and the link stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, StorageError
from coordinator.backup.hand_over import hand_over, take_over
from coordinator.backup.handed_over import MARK, require_not_handed_over
from coordinator.checkpoints.manifest import newest_verified
from coordinator.cli.main import app
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.presence import checkpoints, write_swarm_status
from coordinator.members.audit import audit_log
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from tests.support.operator_commands import call
from tests.support.small_checkpoints import add_checkpoint
from tests.support.small_disks import small_disk

PASSPHRASE = "four words and a horse"
NOW = 1_800_000_000.0


@pytest.fixture
def run(opened_run: OpenRun) -> OpenRun:
    """A run with a member and a checkpoint."""
    opened_run.membership.invite("ada")
    add_checkpoint(opened_run.directory, opened_run.sessions, 5)
    return opened_run


def archive_of(run: OpenRun, tmp_path: Path) -> Path:
    """The run, handed over."""
    archive = tmp_path / "run.archive"
    hand_over(run.directory, run.sessions, archive, PASSPHRASE, NOW)
    return archive


def test_a_run_moves_and_its_links_stay(run: OpenRun, tmp_path: Path) -> None:
    """Members, checkpoints and the certificate that links name are there; the host may be another."""
    old = run.directory
    taken = take_over(archive_of(run, tmp_path), tmp_path / "taken", PASSPHRASE, host="run.example.org")
    assert taken.join_link.fingerprint == old.join_link.fingerprint
    assert taken.join_link.host == "run.example.org"
    assert taken.authority.public_bytes == old.authority.public_bytes
    assert taken.settings == old.settings.model_copy(update={"public_host": "run.example.org"})
    with open_run(taken.path) as opened:
        assert [row.name for row in opened.membership.members()] == ["ada"]
        assert [row.step for row in checkpoints(opened.sessions)] == [5]
    assert newest_verified(taken.checkpoints_dir) is not None
    require_not_handed_over(taken)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_was_handed_over_is_served_no_more(run: OpenRun, tmp_path: Path) -> None:
    """Nor handed over twice; the sentence names the file that says so, without which it is as before."""
    archive_of(run, tmp_path)
    with pytest.raises(ConfigError, match="handed over") as raised:
        call("serve", run.directory.path)
    assert str(run.directory.path / MARK) in str(raised.value)
    with pytest.raises(ConfigError, match="handed over"):
        hand_over(run.directory, run.sessions, tmp_path / "again", PASSPHRASE, NOW)
    (run.directory.path / MARK).unlink()
    hand_over(run.directory, run.sessions, tmp_path / "again", PASSPHRASE, NOW)


def test_a_run_that_is_served_is_not_handed_over(run: OpenRun, tmp_path: Path) -> None:
    """What it did afterwards would be lost."""
    status = {"samples_accumulated": 0, "target_batch_size": 1, "peers": 1, "samples_per_second": 1.0, "eta_s": None}
    write_swarm_status(run.sessions, step=5, addresses=[], now=NOW - 1, **status)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stop it first"):
        archive_of(run, tmp_path)
    assert not (tmp_path / "run.archive").exists()
    require_not_handed_over(run.directory)


def test_weak_passphrases_and_odd_places_are_refused(run: OpenRun, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match="12 or more"):
        hand_over(run.directory, run.sessions, tmp_path / "archive", "short", NOW)
    with pytest.raises(ConfigError, match="own directory"):
        hand_over(run.directory, run.sessions, run.directory.path / "archive", PASSPHRASE, NOW)
    with pytest.raises(ConfigError, match="not there"):
        take_over(tmp_path / "nothing", tmp_path / "taken", PASSPHRASE)
    with pytest.raises(ConfigError, match="public_host"):
        take_over(archive_of(run, tmp_path), tmp_path / "taken", PASSPHRASE, host="two words")
    assert not (tmp_path / "taken").exists()


def test_a_full_disk_leaves_the_run_as_it_was(run: OpenRun, tmp_path: Path) -> None:
    """On either side: nothing half-written, and the run may still be served where it is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, 300 * 1024):
        with pytest.raises(StorageError):
            hand_over(run.directory, run.sessions, disk / "archive", PASSPHRASE, NOW)
        assert list(disk.iterdir()) == []
    require_not_handed_over(run.directory)
    archive = archive_of(run, tmp_path)
    with small_disk(disk, 300 * 1024):
        with pytest.raises(StorageError):
            take_over(archive, disk / "taken", PASSPHRASE)
        assert list(disk.iterdir()) == []


def test_the_commands_say_what_to_do(run: OpenRun, tmp_path: Path) -> None:
    """With the passphrase from a private file, or asked for; each is in the audit log of its side."""
    secret, archive = tmp_path / "passphrase", tmp_path / "run.archive"
    secret.write_text(PASSPHRASE + "\n")
    secret.chmod(0o600)
    said = call("hand-over", run.directory.path, archive, "--passphrase-file", secret).output
    assert "Send the passphrase another way" in said
    asked = ["take-over", str(archive), str(tmp_path / "taken"), "--json"]
    result = CliRunner().invoke(app, asked, input=PASSPHRASE + "\n")
    assert result.exit_code == 0, result.output
    taken = RunDirectory.open(tmp_path / "taken")
    assert json.loads(result.stdout.splitlines()[-1])["join_link"] == str(taken.join_link)
    with open_run(taken.path) as opened:
        assert [row.act for row in audit_log(opened.sessions, 1)] == ["take-over"]
    assert [row.act for row in audit_log(run.sessions, 1)] == ["hand-over"]


def test_other_settings_take_the_place_of_the_runs(run: OpenRun, tmp_path: Path) -> None:
    """Ports, database and all; a host is named in them then."""
    archive, settings = archive_of(run, tmp_path), tmp_path / "settings.yaml"
    settings.write_text(Settings(web_port=9090).to_yaml())
    with pytest.raises(ConfigError, match="--settings"):
        take_over(archive, tmp_path / "taken", PASSPHRASE, settings, "run.example.org")
    assert take_over(archive, tmp_path / "taken", PASSPHRASE, settings).settings.web_port == 9090
