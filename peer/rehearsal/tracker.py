"""One peer's tracker in virtual time: its looks at the records, and its reports (`peer.swarm.tracker`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peer.config.steering import Steering
from peer.rehearsal.board import LOOK_BYTES, PEER_BYTES
from peer.rehearsal.groups import MetGroup
from peer.rehearsal.lines import Process
from peer.rehearsal.world import Taking, World
from peer.swarm.credit import GROWTH, CreditBook
from peer.swarm.fingerprint import Sketch, drifted
from peer.swarm.records import Course, KnownPeer, PeerRecord
from peer.swarm.refresh import LOOKS_AHEAD, longest_refresh_s, look_interval_s, report_interval_s
from peer.swarm.tracker import NOTHING_SEEN
from peer.swarm.view import GREETING_PERIOD_S, SwarmCourse, SwarmView, claim_of

SHARED_S = 0.25  # peers whose looks are no further apart see the same, where they share their eyes


def sketch_of_number(state: int) -> Sketch:
    """Return a sketch for a state's number, unlike that of any other."""
    angle = state * math.pi * (3 - math.sqrt(5))  # the golden angle: no two points on the circle coincide
    return math.cos(angle), math.sin(angle)


@dataclass
class KnownProgress:
    """The swarm's progress towards its next step, as one peer knows it."""

    step: int = 0
    samples: int = 0
    full_at: float = math.inf


class Eyes:
    """The view of the swarm from the records: one peer's own, or all trainers' in common.

    All that look at one moment find the same records, and in a large swarm to judge them once is enough. What differs
    is a peer's own record, which it knows before the others (`VirtualTracker.look`).
    """

    def __init__(self, world: World, own_id: str, *, is_keeper: bool) -> None:
        """`own_id`: whose eyes these are; empty for those of all."""
        expiration_s = world.config.averaging.statistics_expiration_s
        self.course = SwarmCourse(
            own_id=own_id,
            is_keeper=is_keeper,
            silent_after_s=expiration_s / 2,
            first_step_s=expiration_s,
            least_share=world.config.membership.newcomer_share,
            suspicions=world.suspicions_of(own_id or "all"),
        )
        self.is_shared = not own_id
        self._world, self._own_id = world, own_id
        self._seen_at, self._view = -math.inf, NOTHING_SEEN
        self._heard: set[float] = set()  # rounds, by the times of their ends

    def look(self, own: KnownPeer | None) -> SwarmView:
        """Return the view of this moment; `own` is the looking peer's record as it is now."""
        now = self._world.env.now
        if self.is_shared:
            if now - self._seen_at >= SHARED_S:
                self._seen_at = now
                self._view = self.course.look(self._world.board.seen(), self._world.target, now)
            return self._view
        records = [peer for peer in self._world.board.seen(self._own_id) if peer.peer_id != self._own_id]
        return self.course.look(records if own is None else [*records, own], self._world.target, now)

    def round_ended(self, step: int, group: MetGroup, *, short: bool) -> None:
        """Take in a round, once."""
        if group.ended_at not in self._heard or not self.is_shared:
            self._heard.add(group.ended_at)
            weights = group.weights if self._own_id in group.reducers or self.is_shared else {}
            self.course.round_ended(step, weights, group.attested, short)


class VirtualTracker:
    """One peer's knowledge of the swarm, and its reports."""

    def __init__(self, world: World, peer: Taking, eyes: Eyes) -> None:
        averaging = world.config.averaging
        self._world, self._env, self._peer, self._eyes = world, world.env, peer, eyes
        self._expiration_s, self._shortest_s = averaging.statistics_expiration_s, averaging.progress_refresh_s
        self.longest_s = longest_refresh_s(self._shortest_s, self._expiration_s)
        self._credits = CreditBook()
        self.view = NOTHING_SEEN
        self.progress = KnownProgress()
        self.look_at = 0.0  # when the next look is due
        self._keeper_seen_at = self._env.now
        self._era = 0
        self._published: tuple[float, object, int] = (-math.inf, None, 0)
        self._is_publishing = False

    @property
    def course(self) -> SwarmCourse:
        """The course of the swarm, as this peer remembers it."""
        return self._eyes.course

    @property
    def usual_s(self) -> float:
        """The usual duration of a step, as the keeper says; 0 before it is known."""
        return self.course.allowances.usual_s

    @property
    def is_undone(self) -> bool:
        """Whether the run has returned to a checkpoint since this peer took its state."""
        return self._peer.role != "keeper" and self.course.era > self._peer.era

    @property
    def has_drifted(self) -> bool:
        """Whether the keeper has another state after this peer's step."""
        is_at_step = self._peer.step == self.view.step
        return self._peer.role != "keeper" and is_at_step and drifted(self.sketch, self.view.keeper_sketch)

    @property
    def sketch(self) -> Sketch:
        """The sketch of this peer's state; there is none where all have the same eyes, which would compare them all."""
        return () if self._eyes.is_shared else sketch_of_number(self._peer.state)

    @property
    def keeper_may_be_late(self) -> bool:
        """Whether the keeper was there a short while ago."""
        return self._env.now - self._keeper_seen_at < self._expiration_s

    @property
    def is_full(self) -> bool:
        """Whether the batch of this peer's next step is full."""
        return self.progress.step == self._peer.step and self.progress.samples >= self._world.target

    @property
    def missing_samples(self) -> int:
        """The samples that the batch lacks, as far as was reported."""
        return max(0, self._world.target - self.progress.samples)

    def remaining_s(self, matters_below_s: float = math.inf) -> float:
        """Return the seconds until the batch is full, or where they are certainly no fewer, `matters_below_s`."""
        view = self.view
        if view.step != self._peer.step:
            return math.inf
        if view.rate > 0 and self.missing_samples / view.rate - self.longest_s >= matters_below_s:
            return matters_below_s
        return view.remaining_s(self._peer.name, self.missing_samples, self._env.now, self.longest_s)

    def look_if_due(self) -> None:
        """Look at the records if it is time."""
        if self._env.now >= self.look_at:
            self.look()

    def look(self) -> None:
        """Take in all records, and this peer's own as it is now."""
        now, world, peer = self._env.now, self._world, self._peer
        own = self._known() if peer.is_training else None
        self.view = view = self._eyes.look(own)
        world.lines.passed(peer.name, LOOK_BYTES + PEER_BYTES * max(0, view.live - 1))
        if view.keepers:
            self._keeper_seen_at = now
        step = max(view.step, peer.step) if view.trainers == 0 else view.step
        usual_s = view.usual_remaining_s(world.target)
        self.progress = KnownProgress(step, view.samples + self._unseen(own), now + usual_s)
        remaining_s = 0.0 if view.step > peer.step else usual_s
        longest_s = self.longest_s if view.keepers else min(self.longest_s, GREETING_PERIOD_S / 2)
        self.look_at = now + look_interval_s(view.live, remaining_s, self._shortest_s, longest_s)

    def _unseen(self, own: KnownPeer | None) -> int:
        """Return how many more of a peer's own samples count than eyes in common have seen."""
        if own is None or not self._eyes.is_shared or self.view.step != own.record.step or own.role != "trainer":
            return 0
        seen = self._world.board.seen_of(own.peer_id)
        known = self.course.allowances.samples(seen) if seen and seen.record.step == own.record.step else 0
        return max(0, int(self.course.allowances.samples(own) - known))

    def begin_step(self) -> None:
        """Begin with the step after the peer's."""
        if self._peer.step > self.progress.step or self._peer.era > self._era:
            self.progress = KnownProgress(self._peer.step)
        self._era = self._peer.era
        self.report()

    def round_ended(self, group: MetGroup, *, short: bool) -> None:
        """Take in a round's samples; the keeper credits its senders."""
        if not short and self._peer.role == "keeper":
            age_s = self.course.age_s(self._peer.step, self._env.now)
            self._credits.take(group.counted, age_s, self.course.allowances.of)
        self._eyes.round_ended(self._peer.step, group, short=short)

    def report(self) -> None:
        """Publish what changed at once, and mere further samples when the next report is due."""
        published_at, stage, samples = self._published
        if stage != self._stage or self._peer.due_samples < samples:
            self.publish()
        elif not self._is_publishing:
            remaining_s = self.remaining_s(LOOKS_AHEAD * self.longest_s)
            due_at = published_at + report_interval_s(self.view.live, remaining_s, self.longest_s)
            if due_at <= self._env.now:
                self.publish()
            else:
                self._is_publishing = True
                later = self._publish_later(due_at - self._env.now)
                self._env.process(self._world.troubles.held(self._peer.name, later))

    def publish(self) -> None:
        """Store the peer's record."""
        self._published = self._env.now, self._stage, self._peer.due_samples
        self._world.board.publish(self._known())

    def heartbeat(self) -> Process:
        """Publish the record now and then, whatever happens, as long as the peer is there."""
        while self._world.is_here(self._peer):
            if self._env.now - self._published[0] >= self._expiration_s / 4:
                self.publish()
            yield self._env.timeout(self._expiration_s / 8)

    @property
    def _stage(self) -> object:
        """The part of a record that others must know at once."""
        return self._peer.step, self._peer.era, self._peer.is_training, self._peer.state

    def _publish_later(self, seconds: float) -> Process:
        yield self._env.timeout(seconds)
        self._is_publishing = False
        if self._world.is_here(self._peer):
            self.publish()

    def _known(self) -> KnownPeer:
        peer = self._peer
        record = PeerRecord.model_construct(
            step=peer.step,
            samples=claim_of(
                self._world.troubles.named_by(peer.name, peer.due_samples, "claims", "weight"), self._world.target
            ),
            rate=peer.rate,
            time=self._env.now,
            training=peer.is_training,
            client_mode=peer.is_client,
            era=peer.era,
            sketch=self.sketch,
            course=self._keepers_course() if peer.role == "keeper" else None,
        )
        return KnownPeer(peer.name, peer.member, peer.name, peer.role, record)

    def _keepers_course(self) -> Course:
        allowances = self.course.allowances
        return Course.model_construct(
            age_s=self.course.age_s(self._peer.step, self._env.now),
            usual_s=self._credits.usual_s,
            credits=self._credits.credits_above(allowances.share * allowances.target / GROWTH),
            steering=Steering(),
        )
