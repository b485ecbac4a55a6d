"""Records of a swarm's peers, and a peer's course over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from peer.progress.records import KnownPeer, PeerRecord
from peer.progress.view import SwarmCourse, SwarmView
from peer.reduction.attestation import AttestedWeight
from peer.reporting.suspicions import Suspicion, Suspicions

TARGET = 32
SOUND = (1.0,) * 32


def record(
    step: int = 3, samples: int = 0, *, training: bool = True, rate: float = 1.0, time: float = 1.0
) -> PeerRecord:
    """A record with what a test cares about."""
    return PeerRecord(step=step, samples=samples, rate=rate, time=time, training=training, client_mode=False)


def peers(*records: PeerRecord, role: str = "trainer") -> list[KnownPeer]:
    """Trainers (or others) with these records, each another member's."""
    return [
        KnownPeer(f"{role}-{index}", f"{role}-{index}", f"d{index}", role, item) for index, item in enumerate(records)
    ]


@dataclass
class Scene:
    """A peer's course of which a test moves the time, and the suspicions that it raises."""

    is_keeper: bool = False
    own_id: str = "observer-0"
    raised: list[Suspicion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.course = SwarmCourse(
            own_id=self.own_id,
            is_keeper=self.is_keeper,
            silent_after_s=10.0,
            first_step_s=20.0,
            least_share=0.25,
            suspicions=Suspicions(self.raised.append, lambda: 0.0),
        )
        self.course.expect((), (), record().step)

    def look(self, known: list[KnownPeer], now: float = 0.0) -> SwarmView:
        """The view of the swarm that these records give the peer."""
        return self.course.look(known, TARGET, now)

    def round_ended(self, step: int, weights: Mapping[str, float], *, short: bool) -> None:
        """End a round in which everything counted that was named."""
        attested = {peer_id: AttestedWeight(weight, weight, weight, weight) for peer_id, weight in weights.items()}
        self.course.round_ended(step, weights, attested, short)
