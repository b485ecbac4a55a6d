"""The operator's commands that create a run: `init` from options, `configure` from the environment.

`configure` is for containers. It reads MANYHANDS_* variables (see `docker/.env.example` and the
operator's guide), creates the run atomically at the first start, and updates `settings.yaml` from
the variables at later starts. Empty variables, as Compose passes for unset ones, are ignored.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from auth.errors import ConfigError
from auth.files import write_private
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import create_run, make_settings
from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import read_secret
from coordinator.run.settings import Settings
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.runtime.console import say, say_json

app = typer.Typer()
LOCAL_HOST = "127.0.0.1"
HOST = "MANYHANDS_HOST"
ANNOUNCE = "MANYHANDS_ANNOUNCE"
FALLBACK = "MANYHANDS_FALLBACK"
CONTROL_PORT = "MANYHANDS_CONTROL_PORT"
WEB_PORT = "MANYHANDS_WEB_PORT"
SWARM_PORT = "MANYHANDS_SWARM_PORT"
DOMAIN = "MANYHANDS_DOMAIN"
TRUSTED_PROXIES = "MANYHANDS_TRUSTED_PROXIES"
DATABASE_URL = "MANYHANDS_DATABASE_URL"
POSTGRES_PASSWORD = "MANYHANDS_POSTGRES_PASSWORD"  # noqa: S105  # name of a variable
RUN_FILE = "MANYHANDS_RUN_FILE"

# Key of settings.yaml -> environment variable, for error messages.
VARIABLE_OF = {
    "public_host": HOST,
    "announce_hosts": ANNOUNCE,
    "fallback_addresses": FALLBACK,
    "control_port": CONTROL_PORT,
    "web_port": WEB_PORT,
    "swarm_port": SWARM_PORT,
    "public_url": DOMAIN,
    "trusted_proxies": TRUSTED_PROXIES,
    "database_url": DATABASE_URL,
}

VARIABLES = (*VARIABLE_OF.values(), POSTGRES_PASSWORD, RUN_FILE)
DRIVER = "postgresql+psycopg"
POSTGRES_PORT = 5432
SECRET_KEYS = frozenset({"database_url"})  # keys of settings.yaml whose values are not printed


@app.command(epilog="Example: manyhands coordinator init my-run --config run.yaml --host training.example.org")
def init(
    directory: Path = DIRECTORY,
    config: Path | None = typer.Option(None, help="The run file.", show_default="the demo's"),
    recipe: str | None = typer.Option(
        None, help=f"A built-in run file, instead of --config: {', '.join(RECIPES)}.", show_default=False
    ),
    language: str | None = typer.Option(
        None, help="Language of the recipe's text, such as fi or zh-Hant.", show_default="the recipe's own"
    ),
    exact: bool = typer.Option(
        False, "--exact", help="With --recipe: wait in each step for the exact mean of the gradients; slow at home."
    ),
    host: str = typer.Option(
        LOCAL_HOST, help="Name or address at which volunteers reach this machine; part of the join link."
    ),
    announce: list[str] = typer.Option(
        [], help="Another name or address of this machine, such as an IPv6 address if --host is IPv4; repeatable."
    ),
    fallback: list[str] = typer.Option(
        [], help="HOST or HOST:PORT to which the coordinator may move in the future; part of the join link; repeatable."
    ),
    bind: str = typer.Option("0.0.0.0", help="Address to listen on; 0.0.0.0 and :: mean all addresses, IPv4 and IPv6."),  # noqa: S104  # volunteers connect from anywhere
    control_port: int = typer.Option(7443, help="Port of the control plane."),
    web_port: int = typer.Option(8080, help="Port of the dashboard."),
    swarm_port: int = typer.Option(31337, help="Port of the swarm."),
    database_url_file: Path | None = typer.Option(
        None, help="File (mode 0600) with the URL of an empty PostgreSQL database; default: SQLite in the directory."
    ),
    as_json: bool = JSON,
) -> None:
    """Create a new run: its keys, settings, database and tokenizer."""
    run_config = _chosen_run(config, recipe, language, exact)
    settings = make_settings(
        public_host=host,
        announce_hosts=announce,
        fallback_addresses=fallback,
        bind_host=bind,
        control_port=control_port,
        web_port=web_port,
        swarm_port=swarm_port,
        database_url=None if database_url_file is None else read_secret(database_url_file, "--database-url-file"),
    )
    run = create_run(directory, run_config, settings)
    if as_json:
        say_json(
            {
                "directory": str(run.path),
                "run": run_config.run.name,
                "join_link": str(run.join_link),
                "dashboard": f"{settings.web_address}/",
            }
        )
        return
    say(f"The run `{run_config.run.name}` is ready in {run.path}.")
    say(f"Join link: {run.join_link}")
    if host == LOCAL_HOST:
        say("Only this machine can join: give --host with the address under which others reach it.")
    say(f"Dashboard, once the run is served: {settings.web_address}/")
    say(f"Next: {_command('serve', directory)}")
    say(f"and for each volunteer: {_command('invite', directory, 'NAME')}")


def _chosen_run(config: Path | None, recipe: str | None, language: str | None, exact: bool) -> RunConfig:
    """Load the run file, the recipe or the demo's run file. Raises `ConfigError` for conflicting options."""
    if recipe is not None and config is not None:
        raise ConfigError(
            f"`--recipe` ({recipe}) and `--config` ({config}) exclude each other: give one of them; "
            f"`manyhands recipe {recipe} --out run.yaml` writes a recipe to edit."
        )
    if recipe is not None:
        return load_recipe(recipe, language, is_exact=exact)
    if language is not None:
        raise ConfigError(
            f"`--language` ({language}) is for a recipe: add `--recipe`, or set `run.language` in the run file."
        )
    if exact:
        raise ConfigError(
            "`--exact` is for a recipe: add `--recipe`, or set `averaging.compression: float16` and `averaging.delay: "
            "false` in the run file."
        )
    return RunConfig.from_yaml(config or BUILTIN_RUNS / "demo.yaml")


def _command(name: str, directory: Path, *arguments: str) -> str:
    return shlex.join(["manyhands", "coordinator", name, str(directory), *arguments])


@app.command(epilog="Example: manyhands coordinator configure my-run")
def configure(directory: Path = DIRECTORY) -> None:
    """Create a run from the MANYHANDS_* variables, or update its settings from them; for containers."""
    wanted = read_environment(os.environ)
    if (directory / "run.yaml").is_file():
        bring_in_line(RunDirectory.open(directory), wanted)
    else:
        make(directory, wanted)


def make(path: Path, wanted: EnvironmentSettings) -> None:
    """Create the run and its tokenizer atomically."""
    config = RunConfig.from_yaml(wanted.run_file or BUILTIN_RUNS / "demo.yaml")
    settings = settle(Settings(), wanted)
    say(f"Making the run `{config.run.name}` in {path}; a large corpus takes a while.")
    run = create_run(path, config, settings)
    say(f"The run is ready. Join link: {run.join_link}")


def bring_in_line(run: RunDirectory, wanted: EnvironmentSettings) -> None:
    """Update `settings.yaml` from the environment, and print the changes."""
    after = settle(run.settings, wanted)
    require_same_database(run.settings, after)
    changed = changed_keys(run.settings, after)
    if changed:
        write_private(run.path / "settings.yaml", after.to_yaml().encode())
    for key in changed:
        value = "what the environment says" if key in SECRET_KEYS else repr(getattr(after, key))
        say(f"settings.yaml: `{key}` is now {value}.")
    if wanted.run_file is not None and not _holds(wanted.run_file, run.config):
        say(f"{wanted.run_file} is not used: the run keeps the run file it was made with, {run.path}/run.yaml.")


@dataclass(frozen=True)
class EnvironmentSettings:
    """The run file and settings given by environment variables."""

    run_file: Path | None  # None if the variable is not set
    settings: Mapping[str, object]  # key of settings.yaml -> value, if set


def read_environment(environ: Mapping[str, str]) -> EnvironmentSettings:
    """Read the environment variables. Raises `ConfigError` if one is missing or invalid."""
    given = {name: environ.get(name, "").strip() for name in VARIABLES}
    if not given[HOST]:
        raise ConfigError(
            f"{HOST} is missing: set it to the name or address under which volunteers reach this machine "
            "(docker/.env.example explains each variable)."
        )
    settings = {
        "public_host": given[HOST],
        "announce_hosts": _listed(given[ANNOUNCE]),
        "fallback_addresses": _listed(given[FALLBACK]),
        "control_port": _port(CONTROL_PORT, given[CONTROL_PORT]),
        "web_port": _port(WEB_PORT, given[WEB_PORT]),
        "swarm_port": _port(SWARM_PORT, given[SWARM_PORT]),
        "public_url": _public_url(given[DOMAIN]),
        "trusted_proxies": _listed(given[TRUSTED_PROXIES]),
        "database_url": _database_url(given),
    }
    run_file = Path(given[RUN_FILE]) if given[RUN_FILE] else None
    return EnvironmentSettings(run_file, {key: value for key, value in settings.items() if value})


def settle(before: Settings, wanted: EnvironmentSettings) -> Settings:
    """Merge the environment into the settings. Raises a `ConfigError` that names the variable."""
    return make_settings(VARIABLE_OF, **{**before.model_dump(mode="json"), **wanted.settings})


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """Return the keys with different values, in the order of settings.yaml."""
    return [key for key in Settings.model_fields if getattr(before, key) != getattr(after, key)]


def require_same_database(before: Settings, after: Settings) -> None:
    """Raise `ConfigError` if the database's address changes; user and password may change."""
    there, asked = (_described(settings.database_url) for settings in (before, after))
    if there != asked:
        raise ConfigError(
            f"This run is in {there}, and the environment names {asked}, where its data does not go by itself: "
            f"set {DATABASE_URL} and {POSTGRES_PASSWORD} as before, or move it by a backup "
            "(docs/operators/back-up-and-restore.md)."
        )


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _port(name: str, text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65_535):
        raise ConfigError(f"{name} ({text!r:.40}) must be a port, a number from 1 to 65535.")
    return int(text) if text else None


def _public_url(domain: str) -> str | None:
    if domain and not re.fullmatch(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?", domain):
        raise ConfigError(f"{DOMAIN} ({domain!r:.80}) must be a name such as training.example.org, without https://.")
    return f"https://{domain}" if domain else None


def _database_url(given: Mapping[str, str]) -> str | None:
    """Return the database URL for settings.yaml; error messages do not contain the URL."""
    address, password = given[DATABASE_URL], given[POSTGRES_PASSWORD]
    if address and password:
        raise ConfigError(
            f"{DATABASE_URL} (a server of your own) and {POSTGRES_PASSWORD} (the one of the profile `postgres`) "
            "exclude each other: set one of them."
        )
    if password:
        url = URL.create(DRIVER, "manyhands", password, "postgres", POSTGRES_PORT, "manyhands")
        return url.render_as_string(hide_password=False)
    return _as_postgres(address) if address else None


def _as_postgres(address: str) -> str:
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"{DATABASE_URL} is no URL: write postgresql://USER:PASSWORD@HOST:5432/DATABASE.") from error
    if url.drivername not in {"postgres", "postgresql", DRIVER}:
        raise ConfigError(f"{DATABASE_URL} must begin with postgresql://, not with {url.drivername:.40}://.")
    return url.set(drivername=DRIVER).render_as_string(hide_password=False)


def _described(address: str | None) -> str:
    """Describe a database's location, without user and password."""
    if address is None:
        return "SQLite in its directory"
    url = make_url(address)
    return f"the PostgreSQL database {url.database} at {url.host}:{url.port or POSTGRES_PORT}"


def _holds(run_file: Path, config: RunConfig) -> bool:
    try:
        return RunConfig.from_yaml(run_file) == config
    except ConfigError:
        return False  # the run no longer uses this file, so it may be invalid
