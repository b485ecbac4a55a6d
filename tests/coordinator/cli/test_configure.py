"""`manyhands coordinator configure` makes a run by a container's variables and keeps its settings in line with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from auth.errors import ConfigError, ManyhandsError, StorageError
from coordinator.cli import configure as configuring
from coordinator.cli.configure import (
    VARIABLES,
    EnvironmentSettings,
    changed_keys,
    read_environment,
    require_same_database,
    settle,
)
from coordinator.cli.main import app
from coordinator.context.open_run import open_run
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from tests.support.small_run import make_small_run, small_config

HOST = {"MANYHANDS_HOST": "training.example.org"}

SECRET = "p@ss/word:?#"  # each of these means something in a URL

ON_POSTGRES = Settings(database_url="postgresql+psycopg://manyhands:old@postgres:5432/manyhands")


def settled(before: Settings, **given: str) -> Settings:
    """The settings that variables lead to, each named without its prefix."""
    environ = HOST | {f"MANYHANDS_{name}": value for name, value in given.items()}
    return settle(before, read_environment(environ))


@pytest.mark.parametrize("environ", [{}, {"MANYHANDS_HOST": ""}, {"MANYHANDS_HOST": "  "}])
def test_missing_host_is_named(environ: dict[str, str]) -> None:
    """Without a host there is one sentence with the variable and where it is explained."""
    with pytest.raises(ConfigError, match=r"MANYHANDS_HOST is missing.*\.env\.example"):
        read_environment(environ)


def test_each_variable_sets_its_key() -> None:
    """Hosts, ports, domain and proxies go where settings.yaml has them; this machine's own proxies stay believed."""
    settings = settled(
        Settings(),
        ANNOUNCE="2001:db8::1, two.example.org",
        FALLBACK="standby.example.net:7445, 2001:db8::2",
        CONTROL_PORT="7444",
        WEB_PORT="8081",
        SWARM_PORT="31338",
        DOMAIN="dashboard.example.org",
        TRUSTED_PROXIES="10.0.0.2,",
    )
    assert settings.announce_hosts == ("2001:db8::1", "two.example.org")
    assert settings.fallback_addresses == ("standby.example.net:7445", "[2001:db8::2]")
    assert (settings.control_port, settings.web_port, settings.swarm_port) == (7444, 8081, 31338)
    assert settings.public_url == "https://dashboard.example.org"
    assert settings.trusted_proxies == ["10.0.0.2"]


def test_what_no_variable_sets_stays() -> None:
    """Empty variables, as Compose hands them on, leave alone what was edited by hand."""
    before = Settings(
        public_host="old.example.org", web_port=9000, quarantine_strikes=7, public_url="https://x.example.org"
    )
    after = settled(before, WEB_PORT="", DOMAIN="", DATABASE_URL="")
    assert changed_keys(before, after) == ["public_host"]


def test_password_of_the_profile_makes_its_address() -> None:
    """Whatever the password holds, the address leads to the profile's database with that password."""
    address = settled(Settings(), POSTGRES_PASSWORD=SECRET).database_url
    assert address is not None
    url = make_url(address)
    assert (url.drivername, url.host, url.database) == ("postgresql+psycopg", "postgres", "manyhands")
    assert url.password == SECRET


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_address_of_another_server_is_taken_as_providers_write_it(scheme: str) -> None:
    """The driver is ours to name, and what else the address says is kept."""
    given = f"{scheme}://user:secret@db.example.org/run?sslmode=require"
    assert settled(Settings(), DATABASE_URL=given).database_url == (
        "postgresql+psycopg://user:secret@db.example.org/run?sslmode=require"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"CONTROL_PORT": "none"}, "MANYHANDS_CONTROL_PORT.*none"),
        ({"WEB_PORT": "0"}, "MANYHANDS_WEB_PORT"),
        ({"SWARM_PORT": "70000"}, "MANYHANDS_SWARM_PORT"),
        ({"SWARM_PORT": "7443"}, "three different ports"),
        ({"HOST": "two words"}, "MANYHANDS_HOST.*two words"),
        ({"ANNOUNCE": "a,b,c,d,e"}, "MANYHANDS_ANNOUNCE"),
        ({"FALLBACK": "standby:port"}, "MANYHANDS_FALLBACK.*standby:port"),
        ({"FALLBACK": ",".join("abcdefgh")}, "MANYHANDS_FALLBACK"),
        ({"TRUSTED_PROXIES": "caddy"}, "MANYHANDS_TRUSTED_PROXIES"),
        ({"DOMAIN": "https://dashboard.example.org"}, "MANYHANDS_DOMAIN.*without https"),
        ({"DATABASE_URL": "db.example.org"}, "MANYHANDS_DATABASE_URL.*postgresql://"),
        ({"DATABASE_URL": "mysql://user@db/run"}, "MANYHANDS_DATABASE_URL.*mysql"),
        ({"DATABASE_URL": "postgresql://db/run", "POSTGRES_PASSWORD": "x"}, "exclude each other"),
    ],
)
def test_wrong_variable_is_named(given: dict[str, str], words: str) -> None:
    """A mistake is one sentence with the variable, not with the key that it would have set."""
    with pytest.raises(ConfigError, match=words):
        settled(Settings(), **given)


def test_password_in_a_wrong_address_is_not_repeated() -> None:
    """What is said of an address that cannot be used leaves out what it holds."""
    with pytest.raises(ConfigError) as caught:
        settled(Settings(), DATABASE_URL="postgresql://user:hidden@db:port/run")
    assert "hidden" not in str(caught.value)


def test_new_password_is_no_new_database() -> None:
    """User and password may change; the run's data is still there."""
    require_same_database(ON_POSTGRES, settled(ON_POSTGRES, POSTGRES_PASSWORD=SECRET))


@pytest.mark.parametrize(
    ("before", "given"),
    [
        (Settings(), {"POSTGRES_PASSWORD": SECRET}),
        (ON_POSTGRES, {"DATABASE_URL": "postgresql://manyhands:old@other/manyhands"}),
        (ON_POSTGRES, {"DATABASE_URL": "postgresql://manyhands:old@postgres/other"}),
        (ON_POSTGRES, {"DATABASE_URL": "postgresql://manyhands:old@postgres:5433/manyhands"}),
    ],
)
def test_another_database_is_refused(before: Settings, given: dict[str, str]) -> None:
    """A run never begins anew in an empty database because a variable has changed, and no password is said."""
    with pytest.raises(ConfigError, match="backup") as caught:
        require_same_database(before, settled(before, **given))
    assert SECRET not in str(caught.value)
    assert "old@" not in str(caught.value)


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
    wanted = EnvironmentSettings(run_file, {"public_host": "example.org", "database_url": old.database_url})
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
