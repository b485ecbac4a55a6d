"""The identity providers of a run, from its settings and its secret files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from auth.openid.provider import Provider
from auth.openid.relying_party import RelyingParty
from coordinator.directory import RunDirectory
from coordinator.secret_text import read_secret


def open_providers(
    directory: RunDirectory, clock: Callable[[], float], monotonic: Callable[[], float]
) -> dict[str, RelyingParty]:
    """This coordinator's end of each provider; raises `ConfigError` for a secret that is missing or not private."""
    return {
        name: RelyingParty(name, provider, _read_secret(directory.path, name, provider), clock, monotonic)
        for name, provider in directory.settings.providers.items()
    }


def _read_secret(base: Path, name: str, provider: Provider) -> str | None:
    if provider.client_secret_file is None:
        return None
    return read_secret(base / provider.client_secret_file, f"providers.{name}.client_secret_file")
