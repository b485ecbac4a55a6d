"""Exclusion of absent peers for a number of rounds that doubles with each absence.

A lost connection, a busy machine and deliberate obstruction look alike, so an absence is not
treated as misbehavior; the next rounds simply do not wait for the absent peer. An honest peer
returns soon, and a dishonest peer delays fewer and fewer rounds, about twenty in a million.
Exclusions are measured in rounds, because a step takes seconds in one run and an hour in another.
These pure decisions have three uses: a reducer that returned no averages gets no share, reducers do
not wait for a silent sender (both in `peer.averaging.averager`), and the next group does not wait
for a peer that was absent from the last group (`peer.swarm.step_rounds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_REMEMBERED = 512  # maximum number of remembered peers
REMEMBERED_ROUNDS = 16  # minimum number of rounds after which a peer's absences are forgotten
MOST_DOUBLINGS = 20
LINE_LOST = 0.5  # share of absent peers above which this peer's own connection is assumed down


@dataclass
class _Record:
    times: int = 0  # number of the peer's absences
    out_until: int = 0  # index of the last round of the exclusion
    term: int = 0  # length of the exclusion in rounds


class Absences:
    """The recently absent peers, as recorded by one peer."""

    def __init__(self, *, free: int, first_rounds: int) -> None:
        """Allow `free` absences before the first exclusion, which lasts `first_rounds` rounds."""
        self._free, self._first_rounds = free, first_rounds
        self._rounds = 0
        self._records: dict[str, _Record] = {}

    def round_ended(self, absent: Iterable[str] = ()) -> None:
        """Record a round's absent peers; ignore excluded peers, because nobody waited for them."""
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
            self._records[peer] = record  # moves the peer to the end
        for peer in list(self._records)[:-MOST_REMEMBERED]:
            del self._records[peer]

    def current(self) -> set[str]:
        """Return the peers that are excluded from the next round."""
        return {peer for peer, record in self._records.items() if self._rounds < record.out_until}

    def newest(self, most: int) -> list[str]:
        """Return at most `most` excluded peers, those with the most recent absences."""
        out = self.current()
        return [peer for peer in self._records if peer in out][-most:]


def absent_of(absent: Collection[str], awaited: Collection[str]) -> set[str]:
    """Return the absent peers; empty if most were absent, because then this peer was cut off.

    `awaited`: the awaited peers, including this peer if it could have been absent too.
    """
    return set() if len(absent) > LINE_LOST * len(awaited) else set(absent)


def unawaited(out: Collection[str], others: Collection[str]) -> set[str]:
    """Return the excluded peers among `others`, or none if most of `others` are excluded."""
    left_out = set(out) & set(others)
    return set() if len(left_out) > LINE_LOST * len(others) else left_out
