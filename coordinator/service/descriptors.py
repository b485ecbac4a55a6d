"""Open files and connections: the number that the service needs, and the process's limit.

Many systems allow a process 1024, which it may raise itself up to a hard limit. The doctor uses
this module without loading the service.
"""

from __future__ import annotations

import resource

from coordinator.control.door import DESCRIPTORS, DoorLimits
from coordinator.run.settings import Settings
from coordinator.web.http.server import ConnectionLimits

SPARE = 256  # for the database, logs, and files being read


def descriptors_needed(settings: Settings) -> int:
    """Return how many open files and connections the service needs at most."""
    return DESCRIPTORS * DoorLimits.of(settings).connections + ConnectionLimits().connections + SPARE


def most_descriptors() -> int:
    """Return the hard limit on this process's open files; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_limit(needed: int) -> None:
    """Raise this process's limit of open files to `needed`, or as far as allowed."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if 0 <= allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
