"""The version of manyhands, and a notice if the coordinator runs a newer one.

No code installs a new version, because the machine's owner decides what runs on it.
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
COMMIT_FILE = "COMMIT"  # name of the metadata file in wheels that a coordinator builds
SHOWN_COMMIT_CHARS = 8
MAX_SHOWN_CHARS = 32


@cache  # finding it takes longer than all else in a reply to a peer
def software_version() -> str:
    """Return this program's version, such as 0.1.0+g95390707 if its commit is known."""
    try:
        number = version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
    commit = own_commit()
    return f"{number}+g{commit[:SHOWN_COMMIT_CHARS]}" if commit else number


def own_commit() -> str:
    """Return the commit of this program, or "" if it is unknown."""
    return commit_of(distribution(DISTRIBUTION).read_text, ROOT)


def commit_of(read: Callable[[str], str | None], root: Path) -> str:
    """Return the program's commit, from Git in a checkout, else from its metadata; "" if it is unknown."""
    if (root / ".git").exists():
        with suppress(OSError, subprocess.CalledProcessError):
            command = ("git", "-C", str(root), "rev-parse", "HEAD")
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
        return ""
    origin = json.loads(read("direct_url.json") or "{}")  # PEP 610
    return read(COMMIT_FILE) or str(origin.get("vcs_info", {}).get("commit_id", ""))


def update_notice(theirs: str, ours: str, address: str) -> str | None:
    """Return a notice if the coordinator's version is newer than ours, or None if it is not or malformed.

    Commits are shown but not compared. `address` is the wheel's address, with its digest, as the
    coordinator sends it; it is untrusted, and may be empty or malformed.
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
    """Raise `VersionError` if settings are of a newer version, `ConfigError` if others are invalid.

    A peer that ignored an unknown setting would train differently from the others.
    """
    try:
        RunConfig.from_json(run_config_json)
    except ConfigError as error:
        notice = update_notice(theirs, software_version(), address)
        if notice is None:
            raise
        raise VersionError(f"This run needs a newer version. {error} {notice}") from error
