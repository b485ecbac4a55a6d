"""Who claims samples and does not bring them: found out by each peer in the rounds of which it reduces a part.

A round with fewer samples than were claimed fails and would be tried for ever. So from then on only what a device has
really brought counts, and what it accumulates beyond; after false claims in two rounds, no more than it brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peer.allowances import Allowances
from peer.records import KnownPeer

HONEST_SHARE = 0.9  # of a claim; a peer may have dropped a microbatch since its record
FALSE_ROUNDS = 2


class FalseClaims:
    """What rounds have shown of claims."""

    def __init__(self) -> None:
        self.missing: dict[str, int] = {}  # peer ID -> claimed towards the step that is being filled, and not brought
        self.doubted: dict[str, int] = {}  # peer ID -> brought to the last round, by those who claimed falsely
        self._false: dict[str, set[float]] = {}  # peer ID -> times of its false records

    def are_false(self, peer_id: str) -> bool:
        """Whether this peer has claimed falsely often enough to be doubted."""
        return peer_id in self.doubted

    def step_began(self) -> None:
        """Another step is being filled: what was missing from the one before is no matter any more."""
        self.missing.clear()

    def round_ended(
        self, peers: Iterable[KnownPeer], weights: Mapping[str, float], allowances: Allowances, short: bool
    ) -> None:
        """These trainers have brought so many samples; who is not in `weights` was lost and may come again."""
        for peer in peers:
            peer_id, brought = peer.peer_id, max(0.0, weights.get(peer.peer_id, 0.0))
            counted = allowances.samples(peer)
            if short and 0 < brought < counted:
                self.missing[peer_id] = int(peer.record.samples - brought)
                if brought < HONEST_SHARE * counted:
                    self._false.setdefault(peer_id, set()).add(peer.record.time)
            if peer_id in self.doubted or len(self._false.get(peer_id, ())) >= FALSE_ROUNDS:
                self.doubted[peer_id] = int(brought)
