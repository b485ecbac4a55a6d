"""Functions that create a run, or open an existing one for the operator's commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from auth.errors import ConfigError
from coordinator.ledger.ledger import Ledger
from coordinator.members.administration import Administration
from coordinator.members.audit import AuditLog, os_actor
from coordinator.members.membership import Membership
from coordinator.run.database_owner import open_database, require_unused
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import Database, open_engine
from peer.config.run import RunConfig
from peer.data.prepare import prepare_tokenizer


@dataclass(frozen=True)
class OpenRun:
    """A run's directory and database, with the objects that operate on them."""

    directory: RunDirectory
    database: Database
    membership: Membership
    ledger: Ledger
    administration: Administration  # acts on behalf of the command's user
    audit: AuditLog  # records the same user's actions


def make_settings(called: Mapping[str, str] = MappingProxyType({}), /, **values: Any) -> Settings:
    """Build settings from a command's options; raises `ConfigError` for the first invalid option.

    `called` maps a setting's key to the name of its source, such as an environment variable.
    """
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else "settings"
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{called.get(key, f'`{key}`')} ({first['input']!r:.80}): {problem}.") from error
    ports = (settings.control_port, settings.web_port, settings.swarm_port)
    if len(set(ports)) < len(ports):
        raise ConfigError(f"Control plane, web and swarm need three different ports, not {', '.join(map(str, ports))}.")
    return settings


def create_run(path: Path, config: RunConfig, settings: Settings) -> RunDirectory:
    """Create a complete run including its tokenizer, atomically.

    A database that already holds a run is rejected before the tokenizer is trained.
    """
    if settings.database_url is not None:
        engine = open_engine(settings.database_url, create=True)
        try:
            require_unused(engine)
        finally:
            engine.dispose()
    return RunDirectory.create(
        path, config, settings, prepare=lambda run: prepare_tokenizer(run.config, run.tokenizer_dir)
    )


@contextmanager
def open_run(path: Path, clock: Callable[[], float] = time.time) -> Iterator[OpenRun]:
    """Open a run; raises `ConfigError` if it does not exist, or an error of `open_database`."""
    directory = RunDirectory.open(path)
    with open_database(directory) as database:
        membership = Membership.of_run(directory, database, clock)
        administration = Administration(database, membership, os_actor(), clock)
        ledger = Ledger(database, directory.config, clock)
        yield OpenRun(directory, database, membership, ledger, administration, administration.audit)
