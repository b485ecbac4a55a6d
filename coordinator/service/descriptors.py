"""File descriptors: the number that the service needs, and the limits of the process.

Many systems allow a process 1024, and let it raise this limit up to a hard limit. The module does
not import the service, because the doctor uses it, too.
"""

from __future__ import annotations

import resource

from coordinator.control.door import DESCRIPTORS, DoorLimits
from coordinator.run.settings import Settings
from coordinator.web.http.server import ConnectionLimits

SPARE = 256  # further descriptors for the database, logs and files


def descriptors_needed(settings: Settings) -> int:
    """Return the maximum number of open files and connections of the service."""
    return DESCRIPTORS * DoorLimits.of(settings).connections + ConnectionLimits().connections + SPARE


def most_descriptors() -> int:
    """Return this process's hard limit on open files, or -1 if there is none."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_limit(needed: int) -> None:
    """Raise this process's limit on open files to `needed`, or to the hard limit if that is lower."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if 0 <= allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
