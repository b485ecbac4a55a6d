"""Suspicions about peers that behave as no honest peer would.

A suspicion is logged and sent to the coordinator, which decides whether to act and shows the
operator the member's name.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from peer.runtime.repeats import Repeats

logger = logging.getLogger(__name__)
SAME_PAUSE_S = 60.0  # minimum interval between identical suspicions, which count towards a quarantine
MAX_WAITING = 200
MAX_DETAIL_CHARS = 200

SuspicionKind = Literal[
    "step",  # claims a step far ahead of the swarm
    "samples",  # claims more samples than are possible, or than it has contributed
    "state",  # sent a state that differs from other members' states
    "reduction",  # returned an average that contradicts the attested inputs, or signed two attestations of a round
    "shown",  # after a round, presented bytes other than those it had sent
    "average",  # returned a non-finite or far too large average, or attested its averages falsely
    "weight",  # claims a weight that no peer can accumulate
    "gradient",  # sent a gradient that is far too large
    "parts",  # sent malformed parts of a gradient and was banned from the round
]
KINDS = frozenset(get_args(SuspicionKind))


@dataclass(frozen=True)
class Suspicion:
    """A suspicion against a peer; its member and device are read from its token."""

    peer_id: str
    member: str
    device_id: str
    kind: SuspicionKind
    step: int  # the swarm's step when the suspicion arose
    detail: str

    def __str__(self) -> str:
        return f"{self.member} (device {self.device_id}, peer {self.peer_id}) {self.detail} (step {self.step})"


class WaitingSuspicions:
    """A queue of suspicions to send to the coordinator; the oldest are dropped if there are too many."""

    def __init__(self) -> None:
        self._waiting: deque[Suspicion] = deque(maxlen=MAX_WAITING)

    def put(self, suspicion: Suspicion) -> None:
        """Add a suspicion."""
        self._waiting.append(suspicion)

    def take(self) -> list[Suspicion]:
        """Remove and return all suspicions."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


class Suspicions:
    """A thread-safe reporter that logs and forwards suspicions, identical ones at most once a minute."""

    def __init__(self, tell: Callable[[Suspicion], None], clock: Callable[[], float]) -> None:
        self._tell, self._repeats = tell, Repeats(clock, window_s=SAME_PAUSE_S)
        self._lock = threading.Lock()

    def raise_against(self, suspicion: Suspicion) -> None:
        """Log and forward a suspicion, unless an identical one was forwarded in the last minute."""
        with self._lock:
            is_told = self._repeats.take((suspicion.peer_id, suspicion.kind)) is not None
        if is_told:
            logger.warning("suspicious: %s", suspicion)
            self._tell(suspicion)
