"""Undercounting: reducers that count less of the senders' samples than others do, so that a round brings no step.

A reducer decides how much of each sender's weight it counts, for it may know what others do not: a part that is far too
large, or too much noise for so many samples. It attests what it counted. A liar could count nothing of anybody, and no
round would ever have the samples of a batch. No single attestation proves that. But all peers of a whole round hold the
same attestations, and the others' show how much could have been counted:

- An honest reducer measures by the senders' median, so it hardly counts most of the other members for less than most
  reducers do.
- A reducer falls short alone if its parts lack the batch's samples only by its own cuts.

Either may happen to an honest reducer, but seldom in two of its rounds in succession. So nobody is named for it, and
only then does it cost a reducer its share (`peer.averaging.averager`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from peer.reduction.attestation import Attestation

FULL = 0.999  # of a weight, or more: all of it
LEAST_CUT = 2  # members; of two senders nobody can tell which is right


@dataclass(frozen=True)
class Accounts:
    """The reducers' attestations of one round, side by side."""

    attestations: Mapping[str, Attestation]  # by the reducers' peer IDs
    senders: Sequence[str]  # the peer IDs of the lines in each
    members: Mapping[str, str]  # peer ID -> whose device it is
    trusted: frozenset[str] = frozenset()  # peer IDs whose word counts, whatever they count

    def undercounting(self, target: int) -> set[str]:
        """Return the reducers that keep the round from having `target` samples by what they count."""
        return self.cutting_most() | self.short_alone(target)

    def cutting_most(self) -> set[str]:
        """Return the reducers that count most of the other members for less than most reducers do, and two at least.

        A member's devices are judged as one: they could share the others among them.
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
        """Return the reducers whose averages have fewer samples than `target` only because of what these cut."""
        usual, found = self._usual(), set[str]()
        for reducer, attestation in self.attestations.items():
            samples = min(attestation.totals(attestation.senders[0].parts), default=0.0)
            missing = sum(max(0.0, due - counted) for _, counted, due in self._cuts(reducer, usual))
            if round(min(samples, target)) < target <= samples + missing + 0.5:  # sums of liars' lines may be infinite
                found.add(reducer)
        return found - self.trusted

    def _cuts(self, reducer: str, usual: Sequence[float]) -> Iterator[tuple[str, float, float]]:
        """Yield each sender, what this reducer counted of it, and what it could have counted of what it was brought."""
        for sender, line, others in zip(self.senders, self.attestations[reducer].senders, usual, strict=True):
            yield sender, line.least_counted, min(line.weight, others)

    def _usual(self, *, beside_named: bool = False) -> list[float]:
        """Return what most members' reducers count of each sender, without its own; 0 where there is no other.

        A member has one voice, that of its device which counts most. `beside_named`: where one member alone reduces,
        the weight that the sender named has a voice beside it.
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
