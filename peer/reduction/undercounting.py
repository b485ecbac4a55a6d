"""Detection of reducers that count too few of the senders' samples, so that a round brings no step.

A reducer decides how much of each sender's weight it counts, as it may know what others do not: a
part that is far too large, or too much noise for its samples. It attests the counted weights. A
dishonest reducer could count nothing of anybody, and no round would ever have the samples of a
batch. No single attestation proves that. But all peers of a complete round hold the same
attestations, and those of other reducers show how much could have been counted:

- An honest reducer measures by the senders' median, so it hardly counts most of the other members for less than most
  reducers do.
- A reducer falls short alone if its parts lack the batch's samples only by its own cuts.

Either may happen to an honest reducer, but seldom in two successive rounds. So no reducer is reported, and a
reducer loses its share only after two such rounds (`peer.averaging.averager`). The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from peer.reduction.attestation import Attestation

FULL = 0.999  # share of a weight that counts as all of it
LEAST_CUT = 2  # members, as with two senders it is undecidable which one is right


@dataclass(frozen=True)
class Accounts:
    """The reducers' attestations of one round, side by side."""

    attestations: Mapping[str, Attestation]  # by reducer's peer ID
    senders: Sequence[str]  # peer IDs in the order of the lines of each attestation
    members: Mapping[str, str]  # peer ID -> member who owns the device
    trusted: frozenset[str] = frozenset()  # peer IDs that are never suspected

    def undercounting(self, target: int) -> set[str]:
        """Return the reducers whose undercounting keeps the round below `target` samples."""
        return self.cutting_most() | self.short_alone(target)

    def cutting_most(self) -> set[str]:
        """Return the reducers that undercount most of the other members, and at least two.

        A member is undercounted if most reducers count more of it. A reducing member's devices are
        judged together, as they could divide the cuts among them.
        """
        usual = self._usual(beside_named=True)
        cut: dict[str, set[str]] = {}  # by the member that reduces
        for reducer in self.attestations:
            low = {self._owner(sender) for sender, counted, due in self._cuts(reducer, usual) if counted < FULL * due}
            cut.setdefault(self._owner(reducer), set()).update(low)
        brought = {self._owner(sender) for sender, weight in zip(self.senders, usual, strict=True) if weight > 0}
        most = {
            member
            for member, low in cut.items()
            if len(low - {member}) >= LEAST_CUT and 2 * len(low - {member}) > len(brought - {member})
        }
        return {reducer for reducer in self.attestations if self._owner(reducer) in most} - self.trusted

    def short_alone(self, target: int) -> set[str]:
        """Return the reducers whose averages fall below `target` samples only by their own cuts."""
        usual, found = self._usual(), set[str]()
        for reducer, attestation in self.attestations.items():
            samples = min(attestation.totals(attestation.senders[0].parts), default=0.0)
            missing = sum(max(0.0, due - counted) for _, counted, due in self._cuts(reducer, usual))
            if round(min(samples, target)) < target <= samples + missing + 0.5:  # dishonest sums may be infinite
                found.add(reducer)
        return found - self.trusted

    def _cuts(self, reducer: str, usual: Sequence[float]) -> Iterator[tuple[str, float, float]]:
        """Yield each sender, the weight that this reducer counted, and the weight that was due."""
        for sender, line, others in zip(self.senders, self.attestations[reducer].senders, usual, strict=True):
            yield sender, line.least_counted, min(line.weight, others)

    def _usual(self, *, beside_named: bool = False) -> list[float]:
        """Return the weight of each sender that most other members' reducers count.

        It is 0 without other members. A member has one vote, that of its device that counts most. With
        `beside_named`, if only one member reduces, the weight that the sender named is a second vote.
        """
        voices: dict[str, list[Attestation]] = {}
        for reducer, attestation in self.attestations.items():
            voices.setdefault(self._owner(reducer), []).append(attestation)
        found = []
        for index, sender in enumerate(self.senders):
            heard = [
                max(attestation.senders[index].least_counted for attestation in given)
                for member, given in voices.items()
                if member != self._owner(sender)
            ]
            if beside_named and len(voices) == 1:
                heard.append(max(attestation.senders[index].weight for attestation in self.attestations.values()))
            found.append(median_high(heard) if heard else 0.0)
        return found

    def _owner(self, peer_id: str) -> str:
        return self.members.get(peer_id, peer_id)
