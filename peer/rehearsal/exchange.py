"""One peer's exchange of records in virtual time (`peer.swarm.record_exchange`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from peer.averaging.meetings import Heard
from peer.progress.records import KnownPeer, PeerRecord
from peer.progress.tracker import NOTHING_SEEN, Owner, StepTracker
from peer.progress.view import SwarmCourse, SwarmView, claim_of
from peer.reduction.attestation import AttestedWeight
from peer.rehearsal.board import LOOK_BYTES, PEER_BYTES
from peer.rehearsal.scenario import KEEPER
from peer.rehearsal.waits import LEAST_S, VirtualWaits, until
from peer.rehearsal.world import World

COUNT_S = 0.5  # interval in which a leader tells its count
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
    """Publishes one peer's record, reads those of all, and reports to the keeper."""

    def __init__(self, world: World, own: Owner, tracker: StepTracker, waits: VirtualWaits) -> None:
        """Set up the exchange, which `run` begins."""
        self._world, self._own, self._tracker, self._waits = world, own, tracker, waits
        self._env = world.env
        self._due, self._due_at = world.env.event(), math.inf
        self._heard_at = self._looked_at = -math.inf
        tracker.on_due = self._wake

    async def run(self) -> None:
        """Publish and read when the tracker says so, until the device dies."""
        tracker, board, is_keeper = self._tracker, self._world.board, self._own.role == "keeper"
        while True:
            due_s = self._due_in_s
            if due_s > 0:
                self._due_at = self._env.now + max(LEAST_S, due_s)
                awaited = self._env.timeout(max(LEAST_S, due_s)) | self._due
                await until(awaited | board.reported if is_keeper else awaited)
            if is_keeper and board.reported_at > self._looked_at and not tracker.is_full:
                tracker.look_now()
            if tracker.look_in_s <= 0:
                self.look()
            if tracker.publish_in_s <= 0:
                self.publish()

    def look(self) -> None:
        """Read all records, and the leader's count."""
        world, tracker, name = self._world, self._tracker, self._own.peer_id
        self.hear_leader()
        self._looked_at = self._env.now
        tracker.look_begins()
        tracker.look(world.board.heard(name) if self._own.role == "keeper" else world.board.seen(name))
        size = LOOK_BYTES + PEER_BYTES * max(0, len(tracker.view.live) - 1)
        world.lines.passed(name, size, size)
        self._waits.tell()

    def hear_leader(self) -> None:
        """Process the keeper's count of this peer's batch, as often as it is told."""
        if self._env.now < self._heard_at + COUNT_S:
            return
        self._heard_at = self._env.now
        position = self._tracker.era, self._tracker.step
        count = self._world.board.count(*position)
        if count is not None and (self._own.role == "keeper" or self._world.can_reach(KEEPER, self._own.peer_id)):
            remaining_s = count.remaining_s(self._world.target, self._env.now)
            self._tracker.hear(Heard(position, count=(count.samples, remaining_s)))

    def publish(self) -> None:
        """Publish this peer's record."""
        self._world.board.publish(self._known(self._tracker.publication()))

    @property
    def _due_in_s(self) -> float:
        return min(self._tracker.look_in_s, self._tracker.publish_in_s)

    def _wake(self) -> None:
        if self._own.role == "trainer":
            self._world.board.report(self._known(self._tracker.record()), self._world.target)
        if self._env.now + self._due_in_s < self._due_at:
            self._due_at = self._env.now
            due, self._due = self._due, self._env.event()
            due.succeed()

    def _known(self, record: PeerRecord) -> KnownPeer:
        own, troubles = self._own, self._world.troubles
        named = troubles.named_by(own.peer_id, record.samples, "claims", "weight")
        if named != record.samples:
            record = record.model_copy(update={"samples": claim_of(named, self._world.target)})
        return KnownPeer(own.peer_id, own.member, own.device_id, own.role, record)
