"""The version of manyhands, and a notice if the coordinator runs a newer one.

New versions are never installed automatically: the machine's owner decides.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.version import InvalidVersion, Version

from auth.errors import ConfigError, VersionError
from peer.config.run import RunConfig
from peer.runtime.software import DISTRIBUTION, update_command

ROOT = Path(__file__).resolve().parents[2]
COMMIT_FILE = "COMMIT"  # name of the metadata file in a coordinator's wheels
SHOWN_COMMIT_CHARS = 8
MAX_SHOWN_CHARS = 32


@cache  # cached, because this lookup is the slowest part of a reply to a peer
def software_version() -> str:
    """Return this program's version, with the commit if known, such as 0.1.0+g95390707."""
    try:
        number = version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
    commit = own_commit()
    return f"{number}+g{commit[:SHOWN_COMMIT_CHARS]}" if commit else number


def own_commit() -> str:
    """Return this program's commit, or "" if unknown."""
    return commit_of(distribution(DISTRIBUTION).read_text, ROOT)


def commit_of(read: Callable[[str], str | None], root: Path) -> str:
    """Return the program's commit from Git (in a checkout) or the package metadata; "" if unknown."""
    if (root / ".git").exists():
        with suppress(OSError, subprocess.CalledProcessError):
            command = ("git", "-C", str(root), "rev-parse", "HEAD")
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
        return ""
    origin = json.loads(read("direct_url.json") or "{}")  # PEP 610
    return read(COMMIT_FILE) or str(origin.get("vcs_info", {}).get("commit_id", ""))


def update_notice(theirs: str, ours: str, address: str) -> str | None:
    """Return a notice if the coordinator's version is valid and newer than ours, else None.

    Commits are shown but not compared. `address` is the wheel's address with its digest, from the
    coordinator; it is untrusted, and may be empty or malformed.
    """
    try:
        newer = len(theirs) <= MAX_SHOWN_CHARS and Version(Version(theirs).public) > Version(Version(ours).public)
    except InvalidVersion:
        return None
    if not newer:
        return None
    command = update_command(address)
    how = "the run's page about taking part says how." if command is None else command
    return f"This run's coordinator runs manyhands {Version(theirs)}, and you have {ours}; update when you can: {how}"


def require_understood(run_config_json: str, theirs: str, address: str) -> None:
    """Raise `VersionError` for settings of a newer version, `ConfigError` for other invalid settings.

    A peer that ignored an unknown setting would train differently from its peers.
    """
    try:
        RunConfig.from_json(run_config_json)
    except ConfigError as error:
        notice = update_notice(theirs, software_version(), address)
        if notice is None:
            raise
        raise VersionError(f"This run needs a newer version. {error} {notice}") from error
