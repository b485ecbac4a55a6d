"""Findings about other peers in a round, and accusations, which exclude reducers from later groups.

The node tells them to the trainer's process, which knows the owners of devices.

Without accusations, a reducer that returns false averages could make every round fail. Each peer
therefore declares to its groups, along with its bandwidth, the reducers that it has caught itself.
All peers of a group see the same accusations and exclude the reducers that most members accuse. A
single accusation has no effect in a group of three or more members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

MOST_ACCUSED = 8  # maximum number of accusations by one peer at a time
ACCUSED_S = 3600.0  # duration of an accusation in seconds
MAX_ID_CHARS = 100
MOST_DETAIL_CHARS = 200
FindingKind = Literal["reduction", "shown", "average", "parts", "gradient"]  # also used in `reporting.suspicions`


@dataclass(frozen=True)
class Finding:
    """A peer's misbehaviour in a round, detected by another peer."""

    peer_id: str
    kind: FindingKind
    detail: str

    @property
    def bounded(self) -> Finding:
        """This finding with at most `MAX_ID_CHARS` and `MOST_DETAIL_CHARS`; it may quote other peers."""
        return Finding(self.peer_id[:MAX_ID_CHARS], self.kind, self.detail[:MOST_DETAIL_CHARS])


class Accusations:
    """The reducers whose misbehaviour this peer has recently detected."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._caught_at: dict[str, float] = {}

    def accuse(self, peer_id: str) -> None:
        """Record that a reducer has just been caught."""
        self._caught_at.pop(peer_id, None)
        self._caught_at[peer_id] = self._clock()

    def current(self) -> list[str]:
        """Return the IDs of the most recently accused peers, at most `MOST_ACCUSED` of them."""
        now = self._clock()
        self._caught_at = {peer: at for peer, at in self._caught_at.items() if now - at < ACCUSED_S}
        return list(self._caught_at)[-MOST_ACCUSED:]


def outvoted(
    peers: Sequence[str], members: Sequence[str], against: Sequence[Collection[str]], trusted: Sequence[bool]
) -> list[bool]:
    """Return for each peer whether a majority of the other members votes against it.

    The result is False for every trusted peer. `members`: the owner of each peer; a member has one
    vote, but none against its own devices. `against`: the peers that each peer wants to exclude.
    """
    out = []
    for peer, member, is_trusted in zip(peers, members, trusted, strict=True):
        voters = set(members) - {member}
        votes = {by for by, theirs in zip(members, against, strict=True) if peer in theirs} & voters
        out.append(not is_trusted and 2 * len(votes) > len(voters))
    return out
