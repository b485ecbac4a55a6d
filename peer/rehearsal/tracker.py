"""One peer's tracker in virtual time, which reads and publishes records (`peer.swarm.tracker`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peer.config.steering import Steering
from peer.node.quorum import Quorum
from peer.rehearsal.board import LOOK_BYTES, PEER_BYTES, Count
from peer.rehearsal.groups import MetGroup
from peer.rehearsal.scenario import KEEPER
from peer.rehearsal.troubles import Process
from peer.rehearsal.world import Taking, World
from peer.swarm.credit import GROWTH, CreditBook
from peer.swarm.fingerprint import Sketch, drifted
from peer.swarm.records import Course, KnownPeer, PeerRecord
from peer.swarm.refresh import LOOKS_AHEAD, Refresh, look_interval_s, report_interval_s
from peer.swarm.tracker import LED_SHARE, NOTHING_SEEN
from peer.swarm.view import GREETING_PERIOD_S, SwarmCourse, SwarmView, claim_of

SHARED_S = 0.25  # interval in which peers with a shared evaluation see the same records


def sketch_of_number(state: int) -> Sketch:
    """Return a distinct sketch for a state's number."""
    angle = state * math.pi * (3 - math.sqrt(5))  # the golden angle, so no two points on the circle coincide
    return math.cos(angle), math.sin(angle)


@dataclass
class KnownProgress:
    """The swarm's progress towards its next step, as known to one peer."""

    step: int = 0
    samples: int = 0
    full_at: float = math.inf


class Eyes:
    """An evaluation of the records, for one peer or shared by all trainers.

    All peers that read at the same time find the same records, so a large swarm evaluates them
    once. Only a peer's own record differs, which the peer knows earlier (`VirtualTracker.look`).
    """

    def __init__(self, world: World, own_id: str, *, is_keeper: bool) -> None:
        """Set up the evaluation for the peer `own_id`, or for all trainers if the ID is empty."""
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
        self._read = world.board.heard if is_keeper else world.board.seen
        self._seen_at, self._view = -math.inf, NOTHING_SEEN
        self._heard: set[float] = set()  # end times of the processed rounds

    def look(self, own: KnownPeer | None) -> SwarmView:
        """Return the current view; `own`: the reading peer's current record."""
        now = self._world.env.now
        if self.is_shared:
            if now - self._seen_at >= SHARED_S:
                self._seen_at = now
                self._view = self.course.look(self._world.board.seen(), self._world.target, now)
            return self._view
        records = [peer for peer in self._read(self._own_id) if peer.peer_id != self._own_id]
        return self.course.look(records if own is None else [*records, own], self._world.target, now)

    def round_ended(self, step: int, group: MetGroup, *, short: bool) -> None:
        """Process a round; a shared evaluation processes each round only once."""
        if group.ended_at not in self._heard or not self.is_shared:
            self._heard.add(group.ended_at)
            weights = group.weights if self._own_id in group.reducers or self.is_shared else {}
            self.course.round_ended(step, weights, group.attested, short)


class VirtualTracker:
    """One peer's view of the swarm, and the peer's reports."""

    def __init__(self, world: World, peer: Taking, eyes: Eyes) -> None:
        averaging = world.config.averaging
        self._world, self._env, self._peer, self._eyes = world, world.env, peer, eyes
        self._expiration_s, self._shortest_s = averaging.statistics_expiration_s, averaging.progress_refresh_s
        self.longest_s = Refresh(self._shortest_s, self._expiration_s).longest_s
        self._credits = CreditBook()
        self.view = NOTHING_SEEN
        self.progress = KnownProgress()
        self.look_at = 0.0  # time of the next read
        self._era = 0
        self._published: tuple[float, object, int] = (-math.inf, None, 0)
        self._is_publishing = False

    @property
    def course(self) -> SwarmCourse:
        """The swarm's history as known to this peer."""
        return self._eyes.course

    @property
    def usual_s(self) -> float:
        """The usual duration of a step according to the keeper; 0: unknown."""
        return self.course.allowances.usual_s

    @property
    def is_undone(self) -> bool:
        """Whether this peer's state predates the run's last rewind to a checkpoint."""
        return self._peer.role != "keeper" and self.course.era > self._peer.era

    @property
    def has_drifted(self) -> bool:
        """Whether the keeper's state differs from this peer's after the same step."""
        is_at_step = self._peer.step == self.view.step
        return self._peer.role != "keeper" and is_at_step and drifted(self.sketch, self.view.keeper_sketch)

    @property
    def sketch(self) -> Sketch:
        """The sketch of this peer's state; empty with a shared evaluation."""
        return () if self._eyes.is_shared else sketch_of_number(self._peer.state)

    @property
    def quorum(self) -> Quorum:
        """The peers whose majority takes the next step."""
        return self.course.quorum(self._peer.voters, {KEEPER})

    @property
    def is_full(self) -> bool:
        """Whether the batch of this peer's next step is full."""
        return self.progress.step == self._peer.step and self.progress.samples >= self._world.target

    @property
    def missing_samples(self) -> int:
        """The samples missing from the batch according to the records, or to the keeper."""
        told = self._told
        return max(0, self._world.target - max(self.progress.samples, told.samples if told else 0))

    @property
    def _told(self) -> Count | None:
        """The keeper's count at this step, if this peer has lately heard of it."""
        peer, world = self._peer, self._world
        count = world.board.count(peer.era, peer.step)
        is_fresh = count is not None and self._env.now - count.at < self._expiration_s / 4
        return count if is_fresh and (peer.role == "keeper" or world.can_reach(KEEPER, peer.name)) else None

    def remaining_s(self, matters_below_s: float = math.inf) -> float:
        """Return the seconds until the batch is full, or `matters_below_s` for a longer wait."""
        view = self.view
        if (told := self._told) is not None:
            return told.remaining_s(self._world.target, self._env.now)
        if view.step != self._peer.step:
            return math.inf
        if view.rate > 0 and self.missing_samples / view.rate - self.longest_s >= matters_below_s:
            return matters_below_s
        return view.remaining_s(self._peer.name, self.missing_samples, self._env.now, self.longest_s)

    def look_if_due(self) -> None:
        """Read the records if a read is due."""
        if self._env.now >= self.look_at:
            self.look()

    def look(self) -> None:
        """Read all records, with this peer's own record updated."""
        now, world, peer = self._env.now, self._world, self._peer
        own = self._known() if peer.is_training else None
        self.view = view = self._eyes.look(own)
        size = LOOK_BYTES + PEER_BYTES * max(0, len(view.live) - 1)
        world.lines.passed(peer.name, size, size)
        step = max(view.step, peer.step) if view.trainers == 0 else view.step
        usual_s = view.usual_remaining_s(world.target)
        self.progress = KnownProgress(step, view.samples + self._unseen(own), now + usual_s)
        remaining_s = 0.0 if view.step > peer.step else usual_s
        longest_s = self.longest_s if view.keepers else min(self.longest_s, GREETING_PERIOD_S / 2)
        interval_s = look_interval_s(len(view.live), remaining_s, self._shortest_s, longest_s)
        is_led = self._told is not None and view.step <= peer.step
        self.look_at = now + (LED_SHARE * self._expiration_s / 4 if is_led else interval_s)

    def _unseen(self, own: KnownPeer | None) -> int:
        """Return the number of a peer's samples that a shared evaluation does not see yet."""
        if own is None or not self._eyes.is_shared or self.view.step != own.record.step or own.role != "trainer":
            return 0
        seen = self._world.board.seen_of(own.peer_id)
        known = self.course.allowances.samples(seen) if seen and seen.record.step == own.record.step else 0
        return max(0, int(self.course.allowances.samples(own) - known))

    def begin_step(self) -> None:
        """Begin the step that follows the peer's state."""
        if self._peer.step > self.progress.step or self._peer.era > self._era:
            self.progress = KnownProgress(self._peer.step)
        self._era = self._peer.era
        self.course.expect(self._peer.voters, {KEEPER})
        self.report()

    def round_ended(self, group: MetGroup, *, short: bool) -> None:
        """Process a round's samples; the keeper credits its senders."""
        if not short and self._peer.role == "keeper":
            age_s = self.course.age_s(self._peer.step, self._env.now)
            self._credits.take(group.counted, age_s, self.course.allowances.of)
        self._eyes.round_ended(self._peer.step, group, short=short)

    def report(self) -> None:
        """Tell the keeper; publish changes at once, and additional samples when the next record is due."""
        if self._peer.role == "trainer":
            self._world.board.report(self._known(), self._world.target)
        published_at, stage, samples = self._published
        if stage != self._stage or self._peer.due_samples < samples:
            self.publish()
        elif not self._is_publishing:
            remaining_s = self.remaining_s(LOOKS_AHEAD * self.longest_s)
            interval_s = report_interval_s(len(self.view.live), remaining_s, self.longest_s)
            due_at = published_at + (LED_SHARE * self._expiration_s / 4 if self._told else interval_s)
            if due_at <= self._env.now:
                self.publish()
            else:
                self._is_publishing = True
                later = self._publish_later(due_at - self._env.now)
                self._env.process(self._world.troubles.held(self._peer.name, later))

    def publish(self) -> None:
        """Publish the peer's record."""
        self._published = self._env.now, self._stage, self._peer.due_samples
        self._world.board.publish(self._known())

    def heartbeat(self) -> Process:
        """Publish the record at regular intervals while the peer is present."""
        while self._world.is_here(self._peer):
            if self._env.now - self._published[0] >= self._expiration_s / 4:
                self.publish()
            yield self._env.timeout(self._expiration_s / 8)

    @property
    def _stage(self) -> object:
        """The values whose changes are published at once."""
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
