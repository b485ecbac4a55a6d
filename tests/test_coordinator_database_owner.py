"""A database belongs to one run, whatever keys that run gets in the course of time."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError
from auth.identity import AuthorityKey, create_tls_certificate
from coordinator.cli import app
from coordinator.database_owner import claim_database
from coordinator.directory import RunDirectory
from coordinator.runs import open_run
from tests.small_run import make_small_run
from tests.stores import Kind, empty_store


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_small_run(tmp_path)


def test_another_run_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    """At its first command, before it has written anything; one sentence names both."""
    with open_run(run.path) as first:
        first.membership.invite("Ada")
    (tmp_path / "second").mkdir()
    second = make_small_run(tmp_path / "second")
    settings = second.settings.model_copy(update={"database_url": run.database_url})
    (second.path / "settings.yaml").write_text(settings.to_yaml())
    for command in (["members", str(second.path)], ["serve", str(second.path)]):
        error = CliRunner().invoke(app, command).exception
        assert isinstance(error, ConfigError)
        assert f"{second.path} belongs to another run, `small`" in str(error)
    with open_run(run.path) as first:
        assert [member.name for member in first.membership.members()] == ["Ada"]


def test_each_key_may_be_replaced(run: RunDirectory, tmp_path: Path, store_kind: Kind) -> None:
    """One after the other: the run is known by the one that stayed. With both at once it would be another run."""
    changed = RunDirectory(shutil.copytree(run.path, tmp_path / "changed"))
    with empty_store(tmp_path, store_kind) as sessions:
        claim_database(sessions, run)
        replace_certificate(changed)
        claim_database(sessions, changed)
        AuthorityKey.generate().save(changed.keys_dir / "authority.key")
        claim_database(sessions, RunDirectory(changed.path))
        with pytest.raises(ConfigError, match="another run"):
            claim_database(sessions, run)


def test_after_a_rotation_the_certificate_may_be_replaced(run: RunDirectory) -> None:
    """As after a stolen backup: the one right after the other, with no command between them."""
    assert CliRunner().invoke(app, ["rotate-key", str(run.path)]).exit_code == 0
    replace_certificate(run)
    assert CliRunner().invoke(app, ["members", str(run.path)]).exit_code == 0


def test_a_copy_without_keys_is_read(run: RunDirectory) -> None:
    """Somebody keeps what came of a run, and not its secrets."""
    shutil.rmtree(run.keys_dir)
    with open_run(run.path) as opened:
        assert opened.membership.members() == []


def test_of_two_runs_at_once_one_gets_it(tmp_path: Path, store_kind: Kind) -> None:
    """The other one is refused, at whatever moment it came."""
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(make_small_run(tmp_path / name))
    with empty_store(tmp_path, store_kind) as sessions, ThreadPoolExecutor(2) as threads:
        claims = [threads.submit(claim_database, sessions, run) for run in runs]
        errors = [claim.exception() for claim in claims]
    assert sorted(isinstance(error, ConfigError) for error in errors) == [False, True]
    assert errors.count(None) == 1


def replace_certificate(run: RunDirectory) -> None:
    for path in (run.tls_key_path, run.tls_cert_path):
        path.unlink()
    create_tls_certificate(run.tls_key_path, run.tls_cert_path)
