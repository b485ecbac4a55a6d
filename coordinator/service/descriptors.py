"""Open files and connections: the number that the service needs, and the process's limit.

Many systems let a process open 1024 and raise that itself up to a hard limit. The doctor asks without loading the
service.
"""

from __future__ import annotations

import resource

from coordinator.control.door import DESCRIPTORS, DoorLimits
from coordinator.run.settings import Settings
from coordinator.web.http.server import ConnectionLimits

SPARE = 256  # the database, logs, files that are read


def descriptors_needed(settings: Settings) -> int:
    """The open files and connections that the service needs at most."""
    return DESCRIPTORS * DoorLimits.of(settings).connections + ConnectionLimits().connections + SPARE


def most_descriptors() -> int:
    """The hard limit on the open files of this process; -1: there is none."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_limit(needed: int) -> None:
    """Let this process open so many, or as many as it may."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if 0 <= allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
