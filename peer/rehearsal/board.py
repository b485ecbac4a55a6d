"""The records in virtual time: in the DHT, where all see them after a delay, and as reported to the keeper."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import simpy

from peer.progress.records import KnownPeer, PeerRecord
from peer.rehearsal.troubles import Process, Troubles

# Bytes in each direction per read, and per other peer read, including reports and keep-alives.
# Measured in real swarms of 2 to 8 peers that only compute (`benchmarks/swarm/rehearsal.py` at
# commit f9c99822).
LOOK_BYTES, PEER_BYTES = 9_000, 1_500
REPORT_S = 0.1  # time for a report to reach the keeper
DHT_S = 0.4  # time to store a record at several nodes and read it there: a few packets each way


@dataclass(frozen=True)
class _Stored:
    seen_at: float
    peer: KnownPeer
    hidden: frozenset[str]  # devices that a partition separated from the peer at publication


@dataclass
class Count:
    """Sums over the newest reports of all trainers at one step."""

    at: float = 0.0  # time of the newest report
    samples: int = 0
    rate: float = 0.0  # samples per second
    rate_times: float = 0.0  # sum of each trainer's rate times the time of its report

    def add(self, record: PeerRecord, times: int) -> None:
        """Add a report, or take it back with `times` = -1."""
        self.samples += times * record.samples
        self.rate += times * record.rate
        self.rate_times += times * record.rate * record.time

    def remaining_s(self, target: int, now: float) -> float:
        """Return the seconds until the batch is full at the reported rates; infinite if unknown."""
        expected = self.samples + self.rate * now - self.rate_times
        return max(0.0, target - expected) / self.rate if self.rate > 0 else math.inf


class Board:
    """The newest records of all peers."""

    def __init__(self, env: simpy.Environment, expiration_s: float, troubles: Troubles) -> None:
        """Set up the board; a record is valid for `expiration_s` seconds."""
        self._env, self._expiration_s, self._troubles = env, expiration_s, troubles
        self._records: dict[str, deque[_Stored]] = {}  # each peer's visible record, then newer ones
        self._reports: dict[str, _Stored] = {}  # each peer's newest report to the keeper
        self._counts: dict[tuple[int, int], Count] = {}  # (era, step) -> sums over the newest reports
        self._seen_at, self._seen = -math.inf, list[KnownPeer]()  # the records visible to all at a time
        self.reported = env.event()  # succeeds when the reports may fill the batch
        self.reported_at = -math.inf  # the last such time

    def report(self, peer: KnownPeer, target: int) -> None:
        """Send a record to the keeper, which sees it before it is published."""
        seen_at = self._env.now + REPORT_S + self._troubles.delay_s(peer.peer_id)
        if (old := self._reports.get(peer.peer_id)) is not None:
            self._count(old.peer).add(old.peer.record, -1)
        count = self._count(peer)
        count.add(peer.record, 1)
        count.at = self._env.now
        self._reports[peer.peer_id] = _Stored(seen_at, peer, self._troubles.beyond(peer.peer_id))
        if count.samples >= target:
            self._env.process(self._notify(seen_at - self._env.now))

    def count(self, era: int, step: int) -> Count | None:
        """Return the keeper's count of the batch towards the step after `step`."""
        return self._counts.get((era, step))

    def _count(self, peer: KnownPeer) -> Count:
        return self._counts.setdefault((peer.record.era, peer.record.step), Count())

    def _notify(self, seconds: float) -> Process:
        yield self._env.timeout(seconds)
        reported, self.reported, self.reported_at = self.reported, self._env.event(), self._env.now
        reported.succeed()

    def publish(self, peer: KnownPeer) -> None:
        """Publish a peer's record; other devices see it after a delay."""
        seen_at = self._env.now + DHT_S + self._troubles.delay_s(peer.peer_id)
        records = self._records.setdefault(peer.peer_id, deque())
        records.append(_Stored(seen_at, peer, self._troubles.beyond(peer.peer_id)))

    def seen(self, by: str = "") -> list[KnownPeer]:
        """Return the records visible to the device `by`; if `by` is empty, ignore partitions."""
        if self._env.now != self._seen_at or self._troubles.has_sides:
            self._seen_at = self._env.now
            self._seen = [peer for peer_id in list(self._records) if (peer := self.seen_of(peer_id, by)) is not None]
        return self._seen

    def heard(self, by: str) -> list[KnownPeer]:
        """Return the records visible to the keeper `by`, with those reported to it."""
        return [self._newer(peer, by) for peer in self.seen(by)]

    def _newer(self, peer: KnownPeer, by: str) -> KnownPeer:
        report = self._reports.get(peer.peer_id)
        if report is None or report.seen_at > self._env.now or by in report.hidden:
            return peer
        return max(peer, report.peer, key=lambda known: known.record.time)

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
