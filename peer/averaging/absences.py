"""Exclusion of absent peers for a number of rounds that doubles with each absence.

A lost connection, a busy machine and deliberate obstruction look alike, so an absence is not
treated as misbehavior; the next rounds simply do not wait for the absent peer. An honest peer
returns soon, and a dishonest peer delays fewer and fewer rounds, about twenty in a million.
There are three uses: a reducer that returned no averages gets no share, reducers do not wait for a
silent sender (both in `Attendance`), and the next group does not wait for a peer that was absent
from the last group (`peer.swarm.step_rounds`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from peer.averaging.declarations import MOST_MISSED

logger = logging.getLogger(__name__)

MOST_REMEMBERED = 512  # maximum number of remembered peers
REMEMBERED_ROUNDS = 16  # minimum number of rounds after which a peer's absences are forgotten
MOST_DOUBLINGS = 20
UNAWAITED_ROUNDS = 4  # rounds without waiting for a sender that was silent twice
MISSED_ROUNDS = 16  # rounds without a share for a reducer that did not return all averages
UNDERCOUNTED_ROUNDS = 2  # successive rounds of undercounting after which a reducer is treated as failed
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


class Attendance:
    """One peer's record of the senders and reducers that failed in its rounds."""

    def __init__(self, own_id: str, name_of: Callable[[str], str] = str) -> None:
        """Set up an empty record; `name_of` returns how the log calls a peer."""
        self._own, self._name_of = own_id, name_of
        self._missed = Absences(free=0, first_rounds=MISSED_ROUNDS)  # reducers that did not return all averages
        self._silent = Absences(free=1, first_rounds=UNAWAITED_ROUNDS)  # senders that did not send all parts
        self._low = Absences(free=0, first_rounds=MISSED_ROUNDS)  # reducers that undercounted repeatedly
        self._counts: dict[bytes, dict[str, int]] = {}  # half -> reducer -> successive rounds with undercounting

    @property
    def declared(self) -> list[str]:
        """The reducers that this peer names in its declarations, at most `MOST_MISSED`."""
        both = self._missed.newest(MOST_MISSED) + self._low.newest(MOST_MISSED)
        return list(dict.fromkeys(both))[-MOST_MISSED:]

    @property
    def explains_failures(self) -> bool:
        """Whether a reducer has lately been missed, so that failed rounds were not too short."""
        return bool(self._missed.current())

    def unawaited(self, others: Collection[str]) -> set[str]:
        """Return the senders for which this peer does not wait."""
        return unawaited(self._silent.current(), others)

    def round_ended(
        self,
        *,
        missed: Collection[str] = (),
        silent: Collection[str] = (),
        late: Collection[str] = (),
        reducers: Collection[str],
        senders: Collection[str] = (),
    ) -> bool:
        """Record a round, or a half of one; return whether all reducers that failed this peer can be named.

        None is named if most failed, because this peer may be at fault. `missed`: of the other
        `reducers`. `silent`: of the `senders`; or `late`: the awaited ones at the end of the time,
        for which reducers may have waited, too.
        """
        awaited = {*reducers, self._own}
        unreturned = () if late else missed  # the end of a round bans senders with open streams
        gone = absent_of(unreturned, awaited)
        quiet = absent_of(late or silent, senders)
        self._missed.round_ended(gone)
        self._silent.round_ended(quiet)
        self._tell(gone, "did not return all averages: it gets no share for some rounds")
        self._tell(quiet - gone, "did not send all its parts")
        return gone == set(unreturned)

    def counted(self, half: bytes, undercounting: Collection[str], heard: Collection[str]) -> None:
        """Record the reducers that undercounted in a half; an honest one may do so once.

        `heard`: the reducers that have attested their counts.
        """
        before = self._counts.get(half, {})
        rounds = {peer: before.get(peer, 0) + 1 for peer in undercounting}
        again = {peer for peer, count in rounds.items() if count >= UNDERCOUNTED_ROUNDS}
        unheard = {peer: count for peer, count in before.items() if peer not in heard}
        once = unheard | {peer: count for peer, count in rounds.items() if peer not in again}
        self._counts[half] = dict(list(once.items())[-MOST_REMEMBERED:])
        self._low.round_ended(again - {self._own})
        self._tell(again - {self._own}, "counted too few of others' samples again: it gets no share for some rounds")

    def forget_counts(self) -> None:
        """Forget single rounds of undercounting, as of another encoding of gradients."""
        self._counts.clear()

    def _tell(self, peers: Collection[str], did: str) -> None:
        for peer in peers:
            logger.warning("missing: %s, peer %s, %s", self._name_of(peer), peer, did)
