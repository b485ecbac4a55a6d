"""Peers that were absent where others waited for them: left out for some rounds, and for twice as many each time again.

A lost line, a busy machine and a member who means to hold up the swarm look alike. So an absence is no misbehaviour and
nobody is named for it; but whoever was absent is not waited for in the next rounds. An honest peer is soon back, and a
liar costs the swarm ever fewer rounds: of a million some twenty. Terms are counted in
rounds, because a step takes seconds in one run and an hour in another. Pure decisions, which three places ask: a
reducer that did not return averages has no share (`peer.averaging.averager`), a sender that stayed silent is not waited
for by this reducer (the same), and a peer that did not join a group is not waited for to form the next
(`peer.swarm.step_rounds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_REMEMBERED = 512  # peers
REMEMBERED_ROUNDS = 16  # after a term, or as long as that was: then a further absence is a first one again
MOST_DOUBLINGS = 20
LINE_LOST = 0.5  # of those that a peer waited for: if more were absent, its own line was down


@dataclass
class _Record:
    times: int = 0  # absent
    out_until: int = 0  # the number of the last round of its term
    term: int = 0  # rounds


class Absences:
    """The peers that were lately absent, as one peer remembers them."""

    def __init__(self, *, free: int, first_rounds: int) -> None:
        """`free`: absences without consequences. `first_rounds`: rounds left out after the first one that has some."""
        self._free, self._first_rounds = free, first_rounds
        self._rounds = 0
        self._records: dict[str, _Record] = {}

    def round_ended(self, absent: Iterable[str] = ()) -> None:
        """Count a round, with who was absent from it; a peer that was left out had not been waited for."""
        awaited = set(absent) - self.current()
        self._rounds += 1
        self._records = {
            peer: record
            for peer, record in self._records.items()
            if self._rounds - record.out_until <= max(record.term, REMEMBERED_ROUNDS)
        }
        for peer in awaited:
            record = self._records.pop(peer, None) or _Record()
            record.times += 1
            counted = record.times - self._free
            record.term = self._first_rounds * 2 ** min(counted - 1, MOST_DOUBLINGS) if counted > 0 else 0
            record.out_until = self._rounds + record.term
            self._records[peer] = record  # the last in order
        for peer in list(self._records)[:-MOST_REMEMBERED]:
            del self._records[peer]

    def current(self) -> set[str]:
        """Return the peers that are left out of the next round."""
        return {peer for peer, record in self._records.items() if self._rounds < record.out_until}

    def newest(self, most: int) -> list[str]:
        """Return the peers that are left out, those absent last if there are many."""
        out = self.current()
        return [peer for peer in self._records if peer in out][-most:]


def absent_of(absent: Collection[str], awaited: Collection[str]) -> set[str]:
    """Return who of those that a peer waited for was absent: nobody if most were, for then its own line was down.

    `awaited` includes the peer itself, if it might be missed, too.
    """
    return set() if len(absent) > LINE_LOST * len(awaited) else set(absent)


def unawaited(out: Collection[str], others: Collection[str]) -> set[str]:
    """Return which of the other peers not to wait for: those left out; nobody if they are most of the others."""
    left_out = set(out) & set(others)
    return set() if len(left_out) > LINE_LOST * len(others) else left_out
