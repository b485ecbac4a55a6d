"""Events of the session with the coordinator, sent to the agent like `Notice` and `ClockRead`."""

from __future__ import annotations

from dataclasses import dataclass

from peer.reporting.messages import ClockRead, Notice


@dataclass(frozen=True)
class Welcomed:
    """A session has begun; with the coordinator's software version and its download address."""

    version: str
    address: str


@dataclass(frozen=True)
class Connected:
    """The connection to the coordinator has been established or lost."""

    up: bool


@dataclass(frozen=True)
class Standing:
    """The contribution and rank of this member according to the coordinator."""

    own_samples: int
    rank: int
    members: int
    samples_per_second: float = 0.0  # speed of the whole run; 0: unknown
    time_left_s: float = 0.0  # time until the run's last step, at that speed


@dataclass(frozen=True)
class KeeperTold:
    """The keeper's addresses according to the coordinator; some may be unreachable from here."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class CutOff:
    """The coordinator has revoked or quarantined this device; `RevokedError` follows."""

    reason: str


SessionEvent = Notice | Welcomed | Connected | Standing | KeeperTold | ClockRead | CutOff
