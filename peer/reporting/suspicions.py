"""Suspicions against peers, raised by messages or acts that no honest peer produces.

A suspicion goes to the log, and over the session to the coordinator, which decides whether to act
on it and names the member to the operator.
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
SAME_PAUSE_S = 60.0  # before an equal suspicion is passed on again; the rule for quarantine counts them
MAX_WAITING = 200
MAX_DETAIL_CHARS = 200

SuspicionKind = Literal[
    "step",  # claims a step far ahead of the swarm's
    "samples",  # claims more samples than are possible, or than it contributed
    "state",  # sent a state that differs from the other members'
    "reduction",  # returned an average unlike that of its attested inputs, or attested two versions
    "shown",  # showed after a round other bytes than it had sent during it
    "average",  # returned an average that is not finite, far too large, or falsely attested
    "weight",  # claimed a weight in a round that no peer can accumulate
    "gradient",  # sent a gradient that is grossly too large
    "parts",  # sent malformed parts of a gradient, and was banned from the round
]
KINDS = frozenset(get_args(SuspicionKind))


@dataclass(frozen=True)
class Suspicion:
    """A suspicion against one peer, identified by the token that it presented."""

    peer_id: str
    member: str
    device_id: str
    kind: SuspicionKind
    step: int  # the swarm's step at the time
    detail: str

    def __str__(self) -> str:
        return f"{self.member} (device {self.device_id}, peer {self.peer_id}) {self.detail} (step {self.step})"


class WaitingSuspicions:
    """Suspicions waiting for a session with the coordinator; when full, the oldest are dropped."""

    def __init__(self) -> None:
        self._waiting: deque[Suspicion] = deque(maxlen=MAX_WAITING)

    def put(self, suspicion: Suspicion) -> None:
        """Add a suspicion."""
        self._waiting.append(suspicion)

    def take(self) -> list[Suspicion]:
        """Remove and return all suspicions."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


class Suspicions:
    """Logs suspicions and passes them on, an equal one at most once a minute; thread-safe."""

    def __init__(self, tell: Callable[[Suspicion], None], clock: Callable[[], float]) -> None:
        self._tell, self._repeats = tell, Repeats(clock, window_s=SAME_PAUSE_S)
        self._lock = threading.Lock()

    def raise_against(self, suspicion: Suspicion) -> None:
        """Log a suspicion and pass it on, unless an equal one was passed on within the last minute."""
        with self._lock:
            is_told = self._repeats.take((suspicion.peer_id, suspicion.kind)) is not None
        if is_told:
            logger.warning("suspicious: %s", suspicion)
            self._tell(suspicion)
