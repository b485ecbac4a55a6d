"""The DHT's records in virtual time; a new record becomes visible after a delay."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import simpy

from peer.rehearsal.troubles import Troubles
from peer.swarm.records import KnownPeer

# Bytes in each direction per read, and per other peer read, including reports and keep-alives.
# Measured in real swarms of 2 to 8 peers that only compute (`benchmarks/swarm/rehearsal.py` at
# commit f9c99822).
LOOK_BYTES, PEER_BYTES = 9_000, 1_500
DHT_S = 0.4  # time to store a record at several nodes and read it there: a few packets each way


@dataclass(frozen=True)
class _Stored:
    seen_at: float
    peer: KnownPeer
    hidden: frozenset[str]  # devices that a partition separated from the peer at publication


class Board:
    """The newest records of all peers."""

    def __init__(self, env: simpy.Environment, expiration_s: float, troubles: Troubles) -> None:
        """Set up the board; a record is valid for `expiration_s` seconds."""
        self._env, self._expiration_s, self._troubles = env, expiration_s, troubles
        self._records: dict[str, deque[_Stored]] = {}  # each peer's visible record, then newer ones

    def publish(self, peer: KnownPeer) -> None:
        """Publish a peer's record; other devices see it after a delay."""
        seen_at = self._env.now + DHT_S + self._troubles.delay_s(peer.peer_id)
        records = self._records.setdefault(peer.peer_id, deque())
        records.append(_Stored(seen_at, peer, self._troubles.beyond(peer.peer_id)))

    def seen(self, by: str = "") -> list[KnownPeer]:
        """Return the records visible to the device `by`; if `by` is empty, ignore partitions."""
        return [peer for peer_id in list(self._records) if (peer := self.seen_of(peer_id, by)) is not None]

    def seen_of(self, peer_id: str, by: str = "") -> KnownPeer | None:
        """Return one peer's newest record that is visible to the device `by`, or None."""
        now, records, found = self._env.now, self._records.get(peer_id, deque()), None
        while len(records) > 1 and records[1].seen_at <= now and not (records[0].hidden or records[1].hidden):
            records.popleft()
        while records and now - records[0].peer.record.time > self._expiration_s:
            records.popleft()
        for stored in records:
            if stored.seen_at <= now and by not in stored.hidden:
                found = stored.peer
        return found
