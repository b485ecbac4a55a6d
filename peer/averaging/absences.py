"""Peers that were absent from rounds, which other peers stop waiting for, for a growing number of rounds.

A lost connection, a busy machine and a malicious member look alike. An absence is therefore no
misbehaviour, and no peer is reported for it. The next rounds simply do not wait for the absent
peer. An honest peer soon returns; a malicious one delays ever fewer rounds, about twenty in a
million. Terms are numbers of rounds, because a step takes seconds in one run and an hour in
another. A reducer that did not return averages gets no share in the next rounds, and reducers do not
wait for a silent sender (`peer.averaging.averager`). Groups are formed without waiting for a peer
that did not join the last one (`peer.swarm.step_rounds`). The decisions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_REMEMBERED = 512  # maximum number of peers to remember
REMEMBERED_ROUNDS = 16  # minimum time after a term until absences are forgotten, in rounds
MOST_DOUBLINGS = 20
LINE_LOST = 0.5  # fraction of absent peers above which this peer's own connection was down


@dataclass
class _Record:
    times: int = 0  # number of absences
    out_until: int = 0  # last round of the term
    term: int = 0  # number of rounds


class Absences:
    """A record of the peers that were recently absent, kept by one peer."""

    def __init__(self, *, free: int, first_rounds: int) -> None:
        """`free`: absences without consequences. `first_rounds`: length of the first term, in rounds."""
        self._free, self._first_rounds = free, first_rounds
        self._rounds = 0
        self._records: dict[str, _Record] = {}

    def round_ended(self, absent: Iterable[str] = ()) -> None:
        """Record a round and its absent peers; peers that were left out are not counted as absent."""
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
        """Return the peers to leave out of the next round."""
        return {peer for peer, record in self._records.items() if self._rounds < record.out_until}

    def newest(self, most: int) -> list[str]:
        """Return the peers to leave out, at most `most` of those absent most recently."""
        out = self.current()
        return [peer for peer in self._records if peer in out][-most:]


def absent_of(absent: Collection[str], awaited: Collection[str]) -> set[str]:
    """Return the absent peers; empty if most were absent, because then this peer's connection was down.

    `awaited` also includes the peer itself if it may be missed.
    """
    return set() if len(absent) > LINE_LOST * len(awaited) else set(absent)


def unawaited(out: Collection[str], others: Collection[str]) -> set[str]:
    """Return which of the other peers not to wait for: those left out; nobody if they are most of the others."""
    left_out = set(out) & set(others)
    return set() if len(left_out) > LINE_LOST * len(others) else left_out
