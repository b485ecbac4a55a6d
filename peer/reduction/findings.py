"""Findings about other peers in a round, and accusations, which exclude reducers from later groups.

The averager's process sends findings to the trainer's process, which knows the owners of devices. A
failed round returns no result, and hivemind retries internally, so findings use a separate pipe.
Its capacity is small and the writer never blocks; excess findings are dropped.

Without accusations, a reducer that returns false averages could make every round fail. Each peer
therefore declares to its groups, along with its bandwidth, the reducers that it has caught itself.
All peers of a group see the same accusations and exclude the reducers that most members accuse. A
single accusation has no effect in a group of three or more members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from peer.runtime.mailbox import Mailbox

MOST_ACCUSED = 8  # maximum number of accusations by one peer at a time
ACCUSED_S = 3600.0  # duration of an accusation in seconds
MAX_ID_CHARS = 100
MOST_WAITING = 32  # maximum number of findings in the pipe, far below its capacity
MOST_DETAIL_CHARS = 200
FindingKind = Literal["reduction", "shown", "average", "parts", "gradient"]  # also used in `reporting.suspicions`


@dataclass(frozen=True)
class Finding:
    """A peer's misbehaviour in a round, detected by another peer."""

    peer_id: str
    kind: FindingKind
    detail: str


class Findings:
    """A queue of findings from an averager's process to its parent."""

    def __init__(self) -> None:
        self._mailbox = Mailbox[Finding](MOST_WAITING)

    def tell(self, finding: Finding) -> None:
        """Send a finding without blocking; drop it if too many are pending."""
        self._mailbox.put(Finding(finding.peer_id[:MAX_ID_CHARS], finding.kind, finding.detail[:MOST_DETAIL_CHARS]))

    def take(self) -> list[Finding]:
        """Return the findings that were sent since the last call."""
        return self._mailbox.take()


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
