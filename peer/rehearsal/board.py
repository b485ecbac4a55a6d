"""The records in the DHT, in virtual time: others see a record a moment after it was published."""

from __future__ import annotations

from collections import deque

import simpy

from peer.swarm.records import KnownPeer

# Bytes in each direction for a look, and for each other peer in it, with reports and what keeps connections open: from
# the traffic that `benchmarks/rehearsal.py` measures while real swarms of 2 to 8 peers only compute.
LOOK_BYTES, PEER_BYTES = 9_000, 1_500
DHT_S = 0.4  # to store a record at several nodes, and to find it there: a few packets each way


class Board:
    """The newest records of all peers."""

    def __init__(self, env: simpy.Environment, expiration_s: float) -> None:
        """`expiration_s`: so long a record counts."""
        self._env, self._expiration_s = env, expiration_s
        self._records: dict[str, deque[tuple[float, KnownPeer]]] = {}  # the one that is seen, and newer ones

    def publish(self, peer: KnownPeer) -> None:
        """Store a peer's record."""
        self._records.setdefault(peer.peer_id, deque()).append((self._env.now + DHT_S, peer))

    def seen(self) -> list[KnownPeer]:
        """Return the records that can be found now."""
        now, found = self._env.now, []
        for peer_id, records in list(self._records.items()):
            while len(records) > 1 and records[1][0] <= now:
                records.popleft()
            seen_at, peer = records[0]
            if now - peer.record.time > self._expiration_s:
                records.popleft()
                if not records:
                    del self._records[peer_id]
            elif seen_at <= now:
                found.append(peer)
        return found

    def seen_of(self, peer_id: str) -> KnownPeer | None:
        """Return the record of one peer that can be found now."""
        newest = None
        for seen_at, peer in self._records.get(peer_id, ()):
            if seen_at <= self._env.now:
                newest = peer
        return newest
