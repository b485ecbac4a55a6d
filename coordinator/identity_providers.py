"""The identity providers of a run, from its settings and its secret files."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from auth.errors import ConfigError
from auth.openid.provider import Provider
from auth.openid.relying_party import RelyingParty
from coordinator.directory import RunDirectory

MAX_SECRET_BYTES = 4096


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
    path = base / provider.client_secret_file
    key = f"`providers.{name}.client_secret_file` ({path})"
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{key} can be read by others: `chmod 600` it.")
        secret = path.read_bytes()[:MAX_SECRET_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} cannot be read ({getattr(error, 'strerror', 'not ASCII')}).") from error
    if not secret:
        raise ConfigError(f"{key} is empty.")
    return secret
