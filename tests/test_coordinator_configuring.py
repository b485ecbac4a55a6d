"""`manyhands coordinator configure`: a run made and kept by variables, in real directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, ManyhandsError, StorageError
from coordinator import configuring
from coordinator.cli import app
from coordinator.directory import RunDirectory, Settings
from coordinator.environment import VARIABLES, Wanted
from coordinator.runs import open_run
from tests.support.small_run import make_small_run, small_config


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(small_config(tmp_path).to_yaml())
    return path


def configure(directory: Path, **given: object) -> str:
    """Run the command with these variables and no others of ours; returns what it says."""
    environ = dict.fromkeys(VARIABLES, "") | {f"MANYHANDS_{name}": str(value) for name, value in given.items()}
    result = CliRunner().invoke(app, ["configure", str(directory)], env=environ)
    if isinstance(result.exception, ManyhandsError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_first_start_makes_the_run(tmp_path: Path, run_file: Path) -> None:
    """Where there is no run, one is made of the run file and the variables, and its join link is said."""
    said = configure(tmp_path / "data" / "run", HOST="example.org", CONTROL_PORT=7444, RUN_FILE=run_file)
    run = RunDirectory.open(tmp_path / "data" / "run")
    assert run.config.run.name == "small"
    assert (run.settings.public_host, run.settings.control_port) == ("example.org", 7444)
    assert str(run.join_link) in said


def test_nothing_is_left_of_a_first_start_that_fails(tmp_path: Path, run_file: Path) -> None:
    """A corpus that cannot be read leaves neither a run nor a part of one."""
    run_file.write_text(run_file.read_text().replace("documents.txt", "missing.txt"))
    with pytest.raises(ManyhandsError, match=r"missing\.txt"):
        configure(tmp_path / "data" / "run", HOST="example.org", RUN_FILE=run_file)
    assert list((tmp_path / "data").iterdir()) == []


def test_missing_variable_makes_nothing(tmp_path: Path) -> None:
    """Without the host nothing is begun."""
    with pytest.raises(ConfigError, match="MANYHANDS_HOST"):
        configure(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_later_start_changes_what_the_environment_changes(tmp_path: Path) -> None:
    """Keys and members stay, settings follow the variables and are said, and all others are left alone."""
    before = make_small_run(tmp_path)
    fingerprint, web_port = before.join_link.fingerprint, before.settings.web_port
    said = configure(before.path, HOST="new.example.org", DOMAIN="dashboard.example.org")
    after = RunDirectory.open(before.path)
    assert (after.join_link.host, after.join_link.fingerprint) == ("new.example.org", fingerprint)
    assert after.settings.public_url == "https://dashboard.example.org"
    assert after.settings.web_port == web_port
    assert "`public_host` is now 'new.example.org'" in said
    assert (before.path / "settings.yaml").stat().st_mode & 0o777 == 0o600


def test_later_start_without_a_change_says_nothing(tmp_path: Path, run_file: Path) -> None:
    """Where all is as before, the settings are not written again, nor is there anything to read."""
    run = make_small_run(tmp_path)
    settings = run.path / "settings.yaml"
    written = settings.stat().st_mtime_ns
    assert configure(run.path, HOST=run.settings.public_host, RUN_FILE=run_file) == ""
    assert settings.stat().st_mtime_ns == written


@pytest.mark.parametrize("content", ["run: {name: another}\n", "runn: {}\n"])
def test_another_run_file_is_not_taken(tmp_path: Path, run_file: Path, content: str) -> None:
    """A run keeps the run file that it was made with, and whoever changes the other reads that, valid or not."""
    run = make_small_run(tmp_path)
    run_file.write_text(content)
    assert "not used" in configure(run.path, HOST="example.org", RUN_FILE=run_file)
    assert RunDirectory.open(run.path).config.run.name == "small"


def test_run_does_not_leave_its_database(tmp_path: Path) -> None:
    """A password for PostgreSQL does not move a run that is in SQLite, and changes nothing."""
    run = make_small_run(tmp_path)
    with pytest.raises(ConfigError, match="SQLite"):
        configure(run.path, HOST="new.example.org", POSTGRES_PASSWORD="secret")
    assert RunDirectory.open(run.path).settings == run.settings


@pytest.mark.parametrize("members", [["ada"], []])
def test_new_run_does_not_take_an_old_ones_database(tmp_path: Path, run_file: Path, members: list[str]) -> None:
    """Where the database is a gone run's, with members or yet without, no run with other keys is made over it."""
    old = make_small_run(tmp_path)
    with open_run(old.path) as run:
        for name in members:
            run.membership.invite(name)
    wanted = Wanted(run_file, {"public_host": "example.org", "database_url": old.database_url})
    with pytest.raises(ConfigError, match="holds a run already"):
        configuring.make(tmp_path / "new", wanted)
    assert not (tmp_path / "new").exists()


def test_database_that_is_away_is_one_sentence(tmp_path: Path, run_file: Path) -> None:
    """A server that does not answer is said, without the password."""
    with pytest.raises(StorageError, match="cannot be opened") as caught:
        configure(
            tmp_path / "run",
            HOST="example.org",
            RUN_FILE=run_file,
            DATABASE_URL="postgresql://manyhands:hidden@127.0.0.1:1/run",
        )
    assert "hidden" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_default_run_is_the_demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody names a run file, it is the demo's."""
    made: list[str] = []

    def note(path: Path, config: object, settings: Settings) -> RunDirectory:
        made.append(config.run.name)  # type: ignore[attr-defined]
        return make_small_run(tmp_path)

    monkeypatch.setattr(configuring, "create_run", note)
    configure(tmp_path / "other", HOST="example.org")
    assert made == ["demo"]
