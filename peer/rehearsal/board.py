"""The records in the DHT in virtual time: everybody sees them after a delay."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from peer.progress.records import KnownPeer
from peer.rehearsal.troubles import Troubles

# Bytes in each direction per read, and per other peer read, including keep-alives. Measured in real
# swarms of 2 to 8 peers that only compute, at commit f9c99822.
LOOK_BYTES, PEER_BYTES = 9_000, 1_500
DHT_S = 0.4  # time to store a record at several nodes and read it there: a few packets each way


@dataclass(frozen=True)
class _Stored:
    seen_at: float
    peer: KnownPeer
    hidden: frozenset[str]  # devices that a partition separated from the peer at publication


class RehearsedBoard:
    """The newest records of all peers."""

    def __init__(self, now: Callable[[], float], expiration_s: float, troubles: Troubles) -> None:
        """Set up the board; a record is valid for `expiration_s` seconds."""
        self._now, self._expiration_s, self._troubles = now, expiration_s, troubles
        self._records: dict[str, deque[_Stored]] = {}  # each peer's visible record, then newer ones
        self._seen_at, self._seen = -math.inf, list[KnownPeer]()  # the records visible to all at a time

    def publish(self, peer: KnownPeer) -> None:
        """Publish a peer's record; other devices see it after a delay."""
        seen_at = self._now() + DHT_S + self._troubles.delay_s(peer.peer_id)
        records = self._records.setdefault(peer.peer_id, deque())
        records.append(_Stored(seen_at, peer, self._troubles.beyond(peer.peer_id)))

    def seen(self, by: str) -> list[KnownPeer]:
        """Return the records visible to the device `by`."""
        if self._now() != self._seen_at or self._troubles.has_sides:
            self._seen_at = self._now()
            self._seen = [peer for peer_id in list(self._records) if (peer := self._seen_of(peer_id, by)) is not None]
        return self._seen

    def _seen_of(self, peer_id: str, by: str) -> KnownPeer | None:
        now, records, found = self._now(), self._records[peer_id], None
        while len(records) > 1 and records[1].seen_at <= now and not (records[0].hidden or records[1].hidden):
            records.popleft()
        while records and now - records[0].peer.record.time > self._expiration_s:
            records.popleft()
        for stored in records:
            if stored.seen_at <= now and by not in stored.hidden:
                found = stored.peer
        return found
