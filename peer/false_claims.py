"""Who claims samples and does not bring them: found out by each peer in the rounds of which it reduces a part.

Or brings what cannot be taken, or names a weight in the round that its record is far from.

A round with fewer samples than were claimed fails and would be tried for ever. So from then on only what a device has
really brought counts, and what it accumulates beyond; after false claims in two rounds, no more than it brings. Whose
parts were refused is not counted until it has brought some that were taken; after the second time no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from peer.allowances import Allowances
from peer.records import KnownPeer

HONEST_SHARE = 0.9  # of a claim; a peer may have dropped a microbatch since its record
FALSE_ROUNDS = 2
LOST_ROUNDS = 2  # towards one step
WEIGHT_MARGIN = 4.0  # times what the record says: so much may come between the record and the round


class FalseClaims:
    """What rounds have shown of claims."""

    def __init__(self) -> None:
        self.missing: dict[str, int] = {}  # peer ID -> claimed towards the step that is being filled, and not brought
        self.doubted: dict[str, int] = {}  # peer ID -> brought to the last round, by those who claimed falsely
        self.refused: frozenset[str] = frozenset()  # peer IDs that are not counted
        self._false: dict[str, set[float]] = {}  # peer ID -> times of its false records
        self._lost: Counter[str] = Counter()  # peer ID -> rounds towards this step to which it brought nothing
        self._refusals: Counter[str] = Counter()  # peer ID -> rounds in which its parts were refused

    def are_false(self, peer_id: str) -> bool:
        """Whether this peer has claimed falsely often enough to be doubted."""
        return peer_id in self.doubted

    def step_began(self) -> None:
        """Another step is being filled: what was missing from the one before is no matter any more."""
        self.missing.clear()
        self._lost.clear()

    def parts_refused(self, peer_ids: Iterable[str]) -> None:
        """These were banned from a round for what they sent."""
        peer_ids = set(peer_ids)
        self._refusals.update(peer_ids)
        self.refused |= peer_ids

    def round_ended(
        self, peers: Iterable[KnownPeer], weights: Mapping[str, float], allowances: Allowances, short: bool
    ) -> None:
        """These trainers have brought so many samples; who is not in `weights` was lost, and may come once more."""
        for peer in peers:
            peer_id, brought = peer.peer_id, max(0.0, weights.get(peer.peer_id, 0.0))
            if short and not brought:
                self._lost[peer_id] += 1
                if self._lost[peer_id] >= LOST_ROUNDS:  # it may be stalling: the others fill the batch
                    self.missing[peer_id] = peer.record.samples
            if brought > 0 and self._refusals[peer_id] < FALSE_ROUNDS:
                self.refused -= {peer_id}
            counted = allowances.samples(peer)
            if short and 0 < brought < counted:
                self.missing[peer_id] = int(peer.record.samples - brought)
                if brought < HONEST_SHARE * counted:
                    self._false.setdefault(peer_id, set()).add(peer.record.time)
            if peer_id in self.doubted or len(self._false.get(peer_id, ())) >= FALSE_ROUNDS:
                self.doubted[peer_id] = int(brought)


def is_inflated(named: float, cap: float, claimed: int, most_claimed: int) -> bool:
    """Whether the weight that a device named in a round is far from its record, and above what is believed of it.

    `most_claimed` is where records end: who has more says no more.
    """
    return named > cap and claimed < most_claimed and named > WEIGHT_MARGIN * max(1, claimed)
