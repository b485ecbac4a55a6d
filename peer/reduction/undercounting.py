"""Detection of reducers that prevent steps by counting too few of the senders' samples.

A reducer decides how much of each sender's weight it counts, because it may know of parts that are
far too large, or too noisy for their samples. A dishonest reducer could count nothing, and no round
would ever fill a batch. No single attestation proves this, but all peers of a complete round hold
the same attestations, which show how much other reducers have counted:

- A reducer is suspect if it counts fewer samples of most other members than most reducers count.
- A reducer is suspect if its averages are below the batch size only because of its own cuts.

Both can happen to an honest reducer, which compares senders with their median, but seldom in two
consecutive rounds. Reducers are therefore not reported, and lose their share only after two such
rounds (`peer.averaging.absences`). This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from peer.reduction.attestation import Attestation

FULL = 0.999  # a count of at least this fraction of a weight is treated as complete
LEAST_CUT = 2  # minimum number of undercounted members; with only one, either side could be right


@dataclass(frozen=True)
class Accounts:
    """The reducers' attestations of one round."""

    attestations: Mapping[str, Attestation]  # reducer's peer ID -> attestation
    senders: Sequence[str]  # peer IDs in the order of each attestation's entries
    members: Mapping[str, str]  # peer ID -> member that owns the device
    trusted: frozenset[str] = frozenset()  # peer IDs that are never suspected

    def undercounting(self, target: int) -> set[str]:
        """Return the reducers whose undercounting keeps the round below `target` samples."""
        return self.cutting_most() | self.short_alone(target)

    def cutting_most(self) -> set[str]:
        """Return the reducers that undercount most of the other members, and at least two of them.

        A member is undercounted if most reducers count more of its samples. All reducers of one
        owner are judged together, because the owner could spread the cuts over them. The other
        members are those of whom most reducers, or the judged ones, count anything: otherwise,
        reducers that count nothing of a member would turn an honest one's cuts into most.
        """
        usual = self._usual(beside_named=True)
        brought = {self._owner(sender) for sender, weight in zip(self.senders, usual, strict=True) if weight > 0}
        cut: dict[str, set[str]] = {}  # reducing member -> members that it undercounts
        others: dict[str, set[str]] = {}  # reducing member -> the other members
        for reducer in self.attestations:
            member, cuts = self._owner(reducer), list(self._cuts(reducer, usual))
            low = {self._owner(sender) for sender, counted, due in cuts if counted < FULL * due}
            cut.setdefault(member, set()).update(low - {member})
            heard = {self._owner(sender) for sender, counted, _ in cuts if counted > 0}
            others.setdefault(member, set()).update((brought | heard) - {member})
        most = {member for member, low in cut.items() if len(low) >= LEAST_CUT and 2 * len(low) > len(others[member])}
        return {reducer for reducer in self.attestations if self._owner(reducer) in most} - self.trusted

    def short_alone(self, target: int) -> set[str]:
        """Return the reducers whose averages are below `target` samples only because of their own cuts."""
        usual, found = self._usual(), set[str]()
        for reducer, attestation in self.attestations.items():
            samples = min(attestation.totals(attestation.senders[0].parts), default=0.0)
            missing = sum(max(0.0, due - counted) for _, counted, due in self._cuts(reducer, usual))
            if round(min(samples, target)) < target <= samples + missing + 0.5:  # dishonest sums may be infinite
                found.add(reducer)
        return found - self.trusted

    def _cuts(self, reducer: str, usual: Sequence[float]) -> Iterator[tuple[str, float, float]]:
        """Yield (sender, weight counted by this reducer, expected weight) for every sender."""
        for sender, line, others in zip(self.senders, self.attestations[reducer].senders, usual, strict=True):
            yield sender, line.least_counted, min(line.weight, others)

    def _usual(self, *, beside_named: bool = False) -> list[float]:
        """Return the weight that most other members count for each sender; 0 if no other one reduces.

        A member's vote is the highest count of its reducers. If only one member reduces and
        `beside_named` is set, the weight declared by the sender is a second vote.
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
