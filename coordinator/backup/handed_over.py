"""The mark of a run that was handed over: it is served elsewhere, so not here again.

The supervisor asks for it at each start, without loading what encrypts an archive.
"""

from __future__ import annotations

import time
from pathlib import Path

from auth.errors import ConfigError
from auth.files import write_private
from coordinator.run.directory import RunDirectory

MARK = ".handed-over"  # no backup takes files with a dot along


def require_not_handed_over(directory: RunDirectory) -> None:
    """Raise `ConfigError` for a run that was: two keepers of one run would spoil each other's work."""
    mark = directory.path / MARK
    try:
        when = mark.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return
    raise ConfigError(
        f"This run was handed over ({when}) and must be served in one place only: "
        f"if it was never taken over, remove {mark}."
    )


def mark_handed_over(directory: RunDirectory, archive: Path, now: float) -> None:
    """From now on the run is not served here."""
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    write_private(directory.path / MARK, f"{day}, in {archive}\n".encode())
