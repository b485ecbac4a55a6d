"""Events of the session with the coordinator, which the agent hears beside `peer.reporting.messages.Notice`."""

from __future__ import annotations

from dataclasses import dataclass

from peer.reporting.messages import ClockRead, Notice


@dataclass(frozen=True)
class Welcomed:
    """A stay began: the version of the coordinator's software, and the address where it offers that."""

    version: str
    address: str


@dataclass(frozen=True)
class Connected:
    """The line to the coordinator is up, or lost."""

    up: bool


@dataclass(frozen=True)
class Standing:
    """The coordinator's counts for this member."""

    own_samples: int
    rank: int
    members: int
    samples_per_second: float = 0.0  # of the whole run, as everybody is shown it; 0: not known
    time_left_s: float = 0.0  # until the run's last step, at that speed


@dataclass(frozen=True)
class KeeperTold:
    """The keeper's addresses as the coordinator knows them; not all of them need to answer from here."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class CutOff:
    """The device may not take part any more; `RevokedError` follows."""

    reason: str


SessionEvent = Notice | Welcomed | Connected | Standing | KeeperTold | ClockRead | CutOff
