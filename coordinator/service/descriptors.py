"""File descriptors: the number that the service needs, and the limits of the process.

Many systems allow 1024 per process by default, and more up to a hard limit. This module does not
import the service, because the doctor also uses this module.
"""

from __future__ import annotations

import resource

from coordinator.control.door import DESCRIPTORS, DoorLimits
from coordinator.run.settings import Settings
from coordinator.web.http.server import ConnectionLimits

SPARE = 256  # additional descriptors for the database, logs and files


def descriptors_needed(settings: Settings) -> int:
    """Return the maximum number of open files and connections of the service."""
    return DESCRIPTORS * DoorLimits.of(settings).connections + ConnectionLimits().connections + SPARE


def most_descriptors() -> int:
    """Return this process's hard limit on open files, or -1 if it is unlimited."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_limit(needed: int) -> None:
    """Raise this process's limit on open files to `needed`, or to the hard limit if lower."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if 0 <= allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
