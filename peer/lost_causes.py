"""Why samples that were computed are in no global step: a closed list, so that all devices' losses can be added up.

Used by whoever loses them (`peer.trainer`, `peer.swarm`, the agent) and by the coordinator, which adds two of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class LostCause(str, Enum):
    """The values travel and are stored: they are never renamed."""

    NON_FINITE = "non-finite"  # the loss or a gradient of their microbatch was not a number
    LATE = "late"  # the others had filled and taken the step without them
    AVERAGING = "averaging failed"  # this peer's round failed, and the others took the step
    OUT_OF_SYNC = "out of sync"  # the peer's parameters were not the swarm's any more
    UNDONE = "undone"  # the run returned to a checkpoint while they waited
    LEFT = "left"  # the peer stopped or paused before their step was taken
    DIED = "died"  # the process that held them ended or hung
    REFUSED = "refused"  # the coordinator: their report could not be true
    QUARANTINE = "quarantine"  # the coordinator: the device was cut off, for a time or for good, while it held them
    OTHER = "other"  # what this version has no name for


_KNOWN = frozenset(cause.value for cause in LostCause)


@dataclass(frozen=True)
class Lost:
    """Samples that no step's report can tell of; kept by the agent until the coordinator has acknowledged it."""

    step: int  # towards which they were computed, from 1
    by_cause: Mapping[str, int]


def known_causes(lost: Mapping[str, int]) -> dict[str, int]:
    """The same samples under causes of the list only; what is not on it is `other`."""
    found: dict[str, int] = {}
    for cause, samples in sorted(lost.items()):
        name = cause if cause in _KNOWN else LostCause.OTHER.value
        if samples:
            found[name] = found.get(name, 0) + samples
    return found
