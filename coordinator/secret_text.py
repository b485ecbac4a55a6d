"""Secrets that an operator keeps in a file of the run's directory, named in settings.yaml."""

from __future__ import annotations

import stat
from pathlib import Path

from auth.errors import ConfigError

MAX_SECRET_BYTES = 4096


def read_secret(path: Path, setting: str) -> str:
    """The file's text; raises `ConfigError`, which names the setting, where it is missing, empty or not private."""
    key = f"`{setting}` ({path})"
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{key} can be read by others: `chmod 600` it.")
        secret = path.read_bytes()[:MAX_SECRET_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} cannot be read ({getattr(error, 'strerror', 'not ASCII')}).") from error
    if not secret:
        raise ConfigError(f"{key} is empty.")
    return secret
