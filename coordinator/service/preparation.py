"""Preparation of a run before it is served: checks, database migration, and selection of parts.

Preparation runs in a separate process (`coordinator.service.parts`), because the libraries for
database and settings take 100 MB, which the supervisor would otherwise hold while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coordinator.run.database_owner import open_database
from coordinator.run.directory import RunDirectory
from coordinator.run.ports import Listener, check_ports
from coordinator.run.secrets import check_secrets
from coordinator.run.settings import Settings
from coordinator.service.parts import ANSWERER, HERALD, KEEPER, PUBLISHER, SERVICE, SINKS, VALIDATOR, Part, Prepared
from peer.config.run import RunConfig


def prepare(path: Path, *, service_only: bool = False, keeper_only: bool = False) -> Prepared:
    """Check a run's secrets, sinks and ports, and migrate the database.

    Raises a `ManyhandsError` for the first problem.
    """
    directory = RunDirectory.open(path)
    settings = directory.settings
    check_secrets(directory)
    parts = chosen_parts(
        directory.config,
        service_only=service_only,
        keeper_only=keeper_only,
        publishes=bool(settings.publications),
        has_sinks=bool(settings.sinks.names),
        has_webhooks=bool(settings.webhooks),
    )
    if SINKS in parts:
        settings.sinks.require_installed()
    check_ports(listeners(directory, parts))
    with open_database(directory):
        pass  # migrated here, before several parts open the database at once
    return Prepared(
        run=directory.config.run.name,
        parts=parts,
        own_hosts=frozenset({settings.public_host, settings.bind_host, *settings.announce_hosts}),
        join_link=str(directory.join_link),
        dashboard=dashboard_url(settings),
    )


def chosen_parts(
    config: RunConfig,
    *,
    service_only: bool,
    keeper_only: bool,
    publishes: bool = False,
    has_sinks: bool = False,
    has_webhooks: bool = False,
) -> tuple[Part, ...]:
    """Return the parts to run on this machine; a validator is included only if text is held out."""
    if service_only:
        return (SERVICE,)
    chosen = (
        (VALIDATOR, bool(config.data.validation.share)),
        (ANSWERER, config.dashboard.try_it),
        (PUBLISHER, publishes),
        (HERALD, has_webhooks),
        (SINKS, has_sinks),
    )
    beside = [part for part, is_wanted in chosen if is_wanted]
    return (KEEPER, *beside) if keeper_only else (SERVICE, KEEPER, *beside)


def listeners(directory: RunDirectory, parts: Sequence[Part]) -> list[Listener]:
    """Return the listening ports of these parts of the run."""
    settings = directory.settings
    control = _listener(directory, settings, "control_port", "the control plane")
    web = _listener(directory, settings, "web_port", "the dashboard")
    swarm = _listener(directory, settings, "swarm_port", "the swarm")
    return [*([control, web] if SERVICE in parts else []), *([swarm] if KEEPER in parts else [])]


def dashboard_url(settings: Settings) -> str:
    """Return the dashboard's URL for volunteers."""
    return f"{settings.web_address}/"


def _listener(directory: RunDirectory, settings: Settings, key: str, purpose: str) -> Listener:
    return Listener(settings.bind_host, getattr(settings, key), purpose, f"`{key}` in {directory.path}/settings.yaml")
