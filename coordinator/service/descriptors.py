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
