"""The version of manyhands, and the notice for a person where the coordinator runs a newer one.

Nothing here, nor anywhere else, ever installs anything: the person who lends a machine decides what runs on it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from packaging.version import InvalidVersion, Version

from auth.errors import ConfigError, VersionError
from peer.config.run import RunConfig
from peer.runtime.software import DISTRIBUTION, update_command

MAX_SHOWN_CHARS = 32


@cache  # reading it takes longer than answering a peer otherwise does
def software_version() -> str:
    """This program's version, as both ends tell each other."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def update_notice(theirs: str, ours: str, address: str) -> str | None:
    """One line if the coordinator's version is newer than ours; None too if one of them is no version at all.

    `address` is that of the run's own software, with its digest, as the coordinator said; it may be empty, or nonsense.
    """
    try:
        newer = len(theirs) <= MAX_SHOWN_CHARS and Version(theirs) > Version(ours)
    except InvalidVersion:
        return None
    if not newer:
        return None
    command = update_command(address)
    how = "the run's page about taking part says how." if command is None else command
    return f"This run's coordinator runs manyhands {Version(theirs)}, and you have {ours}; update when you can: {how}"


def require_understood(run_config_json: str, theirs: str, address: str) -> None:
    """Raise `VersionError` if the run has settings that only the coordinator's newer version knows, else `ConfigError`.

    Only the newer program can tell what they mean, and to leave them out would train something else than the others.
    """
    try:
        RunConfig.from_json(run_config_json)
    except ConfigError as error:
        notice = update_notice(theirs, software_version(), address)
        if notice is None:
            raise
        raise VersionError(f"This run needs a newer version. {error} {notice}") from error
