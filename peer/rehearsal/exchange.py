"""One peer's exchange of records in virtual time (`peer.swarm.record_exchange`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from peer.progress.records import KnownPeer
from peer.progress.tracker import NOTHING_SEEN, Owner, StepTracker
from peer.progress.view import SwarmCourse, SwarmView
from peer.reduction.attestation import AttestedWeight
from peer.rehearsal.board import LOOK_BYTES, PEER_BYTES
from peer.rehearsal.waits import Signal, VirtualWaits
from peer.rehearsal.world import World

SHARED_S = 0.25  # interval in which peers with a shared evaluation see the same records


class SharedCourse(SwarmCourse):
    """One evaluation of the records for all trainers, which find the same records when they read at the same time."""

    _seen_at, _view = -math.inf, NOTHING_SEEN
    _newest_round: Mapping[str, AttestedWeight] | None = None

    def look(self, peers: list[KnownPeer], target: int, now: float) -> SwarmView:
        """Process these records unless the last ones are as new; return the view of the swarm."""
        if now - self._seen_at >= SHARED_S:
            self._seen_at, self._view = now, super().look(peers, target, now)
        return self._view

    def round_ended(
        self, step: int, weights: Mapping[str, float], attested: Mapping[str, AttestedWeight], short: bool
    ) -> None:
        """Process a round once for all its peers."""
        if attested is not self._newest_round:
            self._newest_round = attested
            super().round_ended(step, weights, attested, short)


class RehearsedExchange:
    """Publishes one peer's record, and reads those of all."""

    def __init__(self, world: World, own: Owner, tracker: StepTracker, waits: VirtualWaits) -> None:
        """Set up the exchange, which `run` begins."""
        self._world, self._own, self._tracker, self._waits = world, own, tracker, waits
        self._due = Signal()
        tracker.on_due = self._due.tell

    async def run(self) -> None:
        """Publish and read when the tracker says so, until the device dies."""
        tracker = self._tracker
        while True:
            if (due_s := min(tracker.look_in_s, tracker.publish_in_s)) > 0:
                await self._due.wait(due_s)
            if tracker.look_in_s <= 0:
                self._look()
            if tracker.publish_in_s <= 0:
                self.publish()

    def _look(self) -> None:
        """Read all records."""
        world, tracker, name = self._world, self._tracker, self._own.peer_id
        tracker.look_begins()
        tracker.look(world.board.seen(name))
        size = LOOK_BYTES + PEER_BYTES * max(0, len(tracker.view.live) - 1)
        world.network.lines.passed(name, size, size)
        self._waits.tell()

    def publish(self) -> None:
        """Publish this peer's record."""
        own = self._own
        record = self._world.as_told(own.peer_id, self._tracker.publication())
        self._world.board.publish(KnownPeer(own.peer_id, own.member, own.device_id, own.role, record))
