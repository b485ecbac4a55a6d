"""Findings of a round about other peers, and the accusations by which a group excludes reducers that most have caught.

The averager's process finds; the trainer's, which knows whose devices they are, hears of it. A round that fails has no
result to say it with, and hivemind tries again by itself; so findings go through a pipe of their own. The pipe holds
little, and its writer never waits: what does not fit is dropped.

A reducer that returns what is no average could make every round fail for as long as it is in the swarm. So each peer
tells its groups which reducers it has caught itself, beside the rate of its line; all of a group see the same words,
and leave out the reducers that most members accuse. One member's word against another's leads to nothing.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

MOST_ACCUSED = 8  # by one peer at a time
ACCUSED_S = 3600.0  # for so long; then who did it may reduce again, until it is caught again
MAX_ID_CHARS = 100
MOST_WAITING = 32  # a pipe has room for many more
MOST_DETAIL_CHARS = 200
FindingKind = Literal["reduction", "shown", "average", "parts", "gradient"]  # as in `peer.reporting.suspicions`


@dataclass(frozen=True)
class Finding:
    """One peer's misbehaviour in a round, as another peer found it."""

    peer_id: str
    kind: FindingKind
    detail: str


class Findings:
    """A queue of findings from one averager to the process that it was forked from."""

    def __init__(self) -> None:
        self._waiting = mp.Value("i", 0)
        self._pipe: mp.SimpleQueue[Finding] = mp.SimpleQueue()

    def tell(self, finding: Finding) -> None:
        """Send a finding without waiting; too many are dropped."""
        with self._waiting.get_lock():
            if self._waiting.value >= MOST_WAITING:
                return
            self._waiting.value += 1
        self._pipe.put(Finding(finding.peer_id[:MAX_ID_CHARS], finding.kind, finding.detail[:MOST_DETAIL_CHARS]))

    def take(self) -> list[Finding]:
        """Return the findings that were sent since the last call."""
        taken = []
        while not self._pipe.empty():
            taken.append(self._pipe.get())
            with self._waiting.get_lock():
                self._waiting.value -= 1
        return taken


class Accusations:
    """The reducers that this peer has lately caught at misbehaviour."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._caught_at: dict[str, float] = {}

    def accuse(self, peer_id: str) -> None:
        """Note that a reducer was caught now."""
        self._caught_at.pop(peer_id, None)
        self._caught_at[peer_id] = self._clock()

    def current(self) -> list[str]:
        """Return the accused peer IDs, those caught last if there are many."""
        now = self._clock()
        self._caught_at = {peer: at for peer, at in self._caught_at.items() if now - at < ACCUSED_S}
        return list(self._caught_at)[-MOST_ACCUSED:]


def outvoted(
    peers: Sequence[str], members: Sequence[str], against: Sequence[Collection[str]], trusted: Sequence[bool]
) -> list[bool]:
    """Return for each peer whether most of the group's other members are against it; never for one that is trusted.

    `members`: the member of each peer, who has one vote, and none on its own devices. `against`: by each peer, whom it
    would have reduce nothing.
    """
    out = []
    for peer, member, is_trusted in zip(peers, members, trusted, strict=True):
        voters = set(members) - {member}
        votes = {by for by, theirs in zip(members, against, strict=True) if peer in theirs} & voters
        out.append(not is_trusted and 2 * len(votes) > len(voters))
    return out
