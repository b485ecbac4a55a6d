"""Open files and connections: how many the service needs, and getting leave for them.

Many systems let a process open 1024, which it may raise itself up to a hard limit.
"""

from __future__ import annotations

import resource

from coordinator.directory import Settings
from coordinator.doorkeeper import DoorLimits
from coordinator.web_connection import ConnectionLimits

SPARE = 256  # the database, logs, files that are read


def descriptors_needed(settings: Settings) -> int:
    """For as many connections as the service takes."""
    return DoorLimits.of(settings).connections + ConnectionLimits().connections + SPARE


def most_descriptors() -> int:
    """The hard limit; -1: there is none."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def raise_limit(needed: int) -> None:
    """Let this process open so many, or as many as it may."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if 0 <= allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
