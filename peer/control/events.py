"""Events that the session with the coordinator sends to the agent, besides `Notice` and `ClockRead`."""

from __future__ import annotations

from dataclasses import dataclass

from peer.reporting.messages import ClockRead, Notice


@dataclass(frozen=True)
class Welcomed:
    """A session has begun; the coordinator sent the version and address of its software."""

    version: str
    address: str


@dataclass(frozen=True)
class Connected:
    """The connection to the coordinator has been established or lost."""

    up: bool


@dataclass(frozen=True)
class Standing:
    """This member's confirmed samples and rank, as the coordinator reports them."""

    own_samples: int
    rank: int
    members: int
    samples_per_second: float = 0.0  # the whole run's speed; 0 if unknown
    time_left_s: float = 0.0  # time until the run's last step, at that speed


@dataclass(frozen=True)
class KeeperTold:
    """The keeper's addresses known to the coordinator; some may be unreachable from this machine."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class CutOff:
    """The coordinator has revoked or quarantined this device; `RevokedError` follows."""

    reason: str


SessionEvent = Notice | Welcomed | Connected | Standing | KeeperTold | ClockRead | CutOff
