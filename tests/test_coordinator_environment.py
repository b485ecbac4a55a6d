"""What a container's variables ask of a run."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from auth.errors import ConfigError
from coordinator.directory import Settings
from coordinator.environment import changed_keys, read_environment, require_same_database, settle

HOST = {"MANYHANDS_HOST": "training.example.org"}
SECRET = "p@ss/word:?#"  # each of these means something in a URL
ON_POSTGRES = Settings(database_url="postgresql+psycopg://manyhands:old@postgres:5432/manyhands")


def settled(before: Settings, **given: str) -> Settings:
    """The settings that variables lead to, each named without its prefix."""
    environ = HOST | {f"MANYHANDS_{name}": value for name, value in given.items()}
    return settle(before, read_environment(environ))


def test_host_alone_is_enough() -> None:
    """With nothing but the host all else is the default."""
    assert settled(Settings()) == Settings(public_host="training.example.org")


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
    assert settings.trusted_proxies == ["127.0.0.1", "::1", "10.0.0.2"]


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
