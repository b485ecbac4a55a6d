"""The tracker: what one peer knows of the swarm's progress towards its next step, and tells of its own.

The tracker evaluates the records that `peer.swarm.record_exchange` reads, and the messages of this
peer's leader and followers. It waits for enough reported samples and uses the step in
`peer.progress.view`. Reads and records are rare while the batch is far from full, because home
connections are slow (`peer.progress.refresh`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from auth.clock import swarm_time
from peer.averaging.requirements import Heard
from peer.config.steering import Steering
from peer.node.quorum import Quorum
from peer.progress.credit import GROWTH, CreditBook
from peer.progress.decision import candidates
from peer.progress.fingerprint import Sketch, drifted
from peer.progress.records import MAX_RATE, Course, KnownPeer, NewestRecords, PeerRecord
from peer.progress.refresh import UNKNOWN_S, Refresh, look_interval_s, report_interval_s
from peer.progress.sample_rate import SampleRate
from peer.progress.view import GREETING_PERIOD_S, SwarmCourse, SwarmView, claim_of
from peer.reduction.attestation import AttestedWeight
from peer.reduction.findings import Finding

logger = logging.getLogger(__name__)
INFERRED_LIFETIMES = 3  # of a record, for which a keeper holds on to the voters that it has inferred
LED_SHARE = 0.7  # of the interval between heartbeats: how often a peer with a leader reads the records
NOTHING_SEEN = SwarmView(0, 0, 0, 0, 0.0, ())


@dataclass(frozen=True)
class Owner:
    """The device to which a peer's records belong."""

    peer_id: str
    member: str
    device_id: str
    role: str
    client_mode: bool = False  # other peers cannot connect to it


@dataclass(frozen=True)
class Clocks:
    """The times that a peer reads, in seconds."""

    swarm: Callable[[], float] = swarm_time  # of records
    local: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Led:
    """The newest message between this peer and its leader, or its followers."""

    position: tuple[int, int]  # era and step
    at: float  # local time in seconds
    samples: int = 0  # samples of the batch that the leader counts; 0 if this peer leads
    full_at: float | None = None  # local time at which the batch will be full; None if this peer leads


class StepTracker:
    """One peer's view of the swarm, and the record that the others see; thread-safe."""

    def __init__(
        self,
        own: Owner,
        run: str,
        course: SwarmCourse,
        *,
        target_batch_size: int,
        refresh: Refresh,
        keepers: Collection[str] = (),
        clocks: Clocks | None = None,
    ) -> None:
        """Set up the tracker; `keepers`: peer IDs of the run's keepers."""
        self._own, self._run, self._refresh = own, run, refresh
        self._clocks = clocks or Clocks()
        self.course = course
        self.target_batch_size = target_batch_size
        self.rate = SampleRate(self._clocks.local)
        self.step = 0  # global steps included in this peer's state
        self.era = 0  # number of times that the run had returned to a checkpoint before this peer's state
        self._voters = frozenset[str]()  # the peers that took this peer's newest step; empty: unknown
        self.named_voters = frozenset[str]()  # those that the donor of a keeper's next state has named
        self._infers_voters = False  # whether this keeper is still to find the voters
        self._inferred_at: float | None = None  # local time at which it has found them; None if it knows them
        self.sketch: Sketch = ()  # of this peer's own state
        self._samples = 0  # this peer's samples towards the next step
        self.swarm_step = 0  # the swarm's step, as far as this peer knows
        self._swarm_samples = 0  # samples towards the step after it
        self.view = NOTHING_SEEN
        self._newest = NewestRecords(refresh.expiration_s)
        self._read: list[KnownPeer] = []  # the newest record of each peer in the last read
        self._read_at = -math.inf  # local time at which the next read is due
        self._credits = CreditBook()
        self._is_training = own.role == "keeper"
        self._slow_line: float | None = None
        self._steering = Steering()
        self._keepers = frozenset(keepers)
        self._joined_at = self._clocks.swarm()
        self._keeper_seen_at = self._joined_at if keepers else -math.inf  # joining counts as seeing a keeper
        self._published: tuple[float, object, int] = (-math.inf, None, 0)  # last record: local time, stage, samples
        self._has_more = True  # whether there is anything to publish before the next heartbeat
        self._reported: tuple[object, bytes] = None, b""  # the newest message to the leader, and what it tells
        self._reducing_since: float | None = None
        self._behind_since: float | None = None  # local time since which this peer is behind the swarm's step
        self._is_told_behind = False  # whether the leader has taken this peer's next step
        self._led = Led((0, 0), -math.inf)
        self._asked_at = -math.inf  # time of the last read for the sake of an unknown follower
        self._lock = threading.RLock()
        self.on_caps: Callable[[dict[str, float], float], object] | None = None  # called with new caps for reductions
        self.on_due: Callable[[], object] = lambda: None  # called when a read or a publication may be due earlier

    @property
    def own_id(self) -> str:
        """This peer's ID."""
        return self._own.peer_id

    @property
    def is_full(self) -> bool:
        """Whether the reported samples fill the global batch of this peer's next step."""
        with self._lock:  # another thread may just be changing the step and the samples
            return self.swarm_step == self.step and self._swarm_samples >= self.target_batch_size

    @property
    def is_told_full(self) -> bool:
        """Whether this peer's leader counts a full batch, which the records may show later."""
        has_gone_on = self._is_told_behind or self.swarm_step > self.step
        follows = self._own.role != "keeper" and self.is_led and not has_gone_on
        return follows and self._led.samples >= self.target_batch_size

    @property
    def batch_s(self) -> float:
        """The seconds in which all trainers compute a batch; infinite if unknown."""
        return self.target_batch_size / self.view.rate if self.view.rate > 0 else math.inf

    @property
    def samples(self) -> int:
        """The samples towards this peer's next step that are known to it."""
        return self._swarm_samples if self.swarm_step == self.step else 0

    @property
    def is_held(self) -> bool:
        """Whether the operator has paused or ended the run."""
        steering = self.course.steering
        return steering.paused or steering.has_ended(self.step)

    @property
    def keeper_may_be_late(self) -> bool:
        """Whether the keeper was seen recently, so that a missing record may only be late."""
        return self._clocks.swarm() - self._keeper_seen_at < self._refresh.expiration_s

    @property
    def leaders(self) -> tuple[str, ...]:
        """The IDs of the peers that may lead this step's group, preferred first."""
        is_new = self._clocks.swarm() - self._joined_at < self._refresh.expiration_s / 2
        keepers = (self.view.keeper_ids or self._known_keepers) if is_new or self.course.hears_keeper else ()
        others = self.view.reachable - self.view.keeper_ids
        return candidates(keepers, others, self._run, (self.era, self.step))

    @property
    def _known_keepers(self) -> frozenset[str]:
        return frozenset({self.own_id}) if self._own.role == "keeper" else self._keepers

    @property
    def quorum(self) -> Quorum:
        """The peers whose majority takes the next step; nobody does while a keeper is still to find the voters."""
        if self._infers_voters:
            return Quorum(frozenset({""}))
        return self.course.quorum(self._voters, self._known_keepers)

    @property
    def has_drifted(self) -> bool:
        """Whether the keeper's state after the same step clearly differs from this peer's."""
        is_at_step = self._own.role != "keeper" and self.step == self.view.step
        return is_at_step and drifted(self.sketch, self.view.keeper_sketch)

    @property
    def is_undone(self) -> bool:
        """Whether this peer's state predates the run's last rewind to a checkpoint."""
        return self._own.role != "keeper" and self.course.era > self.era

    @property
    def missing_samples(self) -> int:
        """The samples missing from the batch according to the records, or to the leader."""
        told = self._led.samples if self.is_led else 0
        return max(0, self.target_batch_size - max(told, self._swarm_samples))

    @property
    def remaining_s(self) -> float:
        """The seconds until the batch is full, told by the leader or at the reported rates; infinite if unknown."""
        if self.is_led and self._led.full_at is not None:
            return max(0.0, self._led.full_at - self._clocks.local())
        if self.view.step != self.step:
            return math.inf
        now = self._clocks.swarm()
        return self.view.remaining_s(self.own_id, self.missing_samples, now, self._refresh.longest_s)

    @property
    def is_led(self) -> bool:
        """Whether this peer has lately heard from its leader, or its followers, at this step."""
        is_fresh = self._clocks.local() - self._led.at < self._refresh.heartbeat_s
        return is_fresh and self._led.position == (self.era, self.step)

    @property
    def _led_s(self) -> float:
        """The interval between reads of a peer that depends less on them; 0 for others."""
        return LED_SHARE * self._refresh.heartbeat_s if self.is_led else 0.0

    # this peer's own state

    def begin_step(self, step: int, era: int, voters: Collection[str], sketch: Sketch, samples: int) -> None:
        """Begin the step after `step`, this peer's current step, with `samples` computed earlier.

        A newer `era` resets the swarm's known progress, which belongs to the older era. `voters`:
        the peers that took `step`, or none if unknown. `sketch`: of the state after `step`.
        """
        with self._lock:
            self._voters, self.sketch, self._inferred_at = frozenset(voters), sketch, None
            is_rewound = era > self.era and self.step > 0  # the others have not returned yet
            self._infers_voters = self._own.role == "keeper" and not voters and step > 0 and not is_rewound
            self.course.expect(voters, self._known_keepers, step)
            if era > self.era or step > self.swarm_step:
                self.swarm_step, self._swarm_samples = step, samples
            self.era, self.step, self._samples = era, step, samples
            self._infer_voters()
            self.named_voters = frozenset()
            self._behind_since, self._is_told_behind = None, False
            self.rate.restart()
        self._tell()

    def report(self, samples: int) -> None:
        """Set this peer's samples towards the next step."""
        with self._lock:
            if self.swarm_step == self.step:
                self._swarm_samples += samples - self._samples
            self._samples = samples
        self._tell()

    def begin_training(self) -> None:
        """Announce that this peer trains, so that others wait for it when they average."""
        if not self._is_training:
            self._is_training = True
            self._tell()

    def stand_by(self, slow_line: float | None) -> None:
        """Announce that this peer is on standby, so that others need not wait for it.

        `slow_line`: this peer's bandwidth in bytes per second; None withdraws the announcement.
        """
        if slow_line != self._slow_line or (slow_line is not None and self._is_training):
            self._slow_line = slow_line
            self._is_training = self._is_training and slow_line is None
            self._tell()

    def leave(self) -> None:
        """Announce that others need not wait for this peer."""
        self._is_training, self._slow_line = False, None

    def steer(self, steering: Steering) -> None:
        """Set the operator's steering in the beacon, which all peers and the keeper follow."""
        if steering != self._steering:
            self._steering = steering
            self._tell()

    def is_reducing(self, reduces: bool) -> None:
        """Set whether this peer's group is averaging; reads are then rarer, to save bandwidth."""
        began_at = self._reducing_since
        self._reducing_since = None if not reduces else self._clocks.local() if began_at is None else began_at
        if not reduces and began_at is not None:
            self.look_now()

    def round_ended(
        self,
        weights: Mapping[str, float],
        counted: Mapping[str, float],
        attested: Mapping[str, AttestedWeight],
        *,
        samples: int,
        is_step: bool,
    ) -> None:
        """Process the samples of a round towards the next step; the mappings are by peer ID.

        `weights`: the samples declared by the senders of the parts that this peer reduced;
        `counted`: the samples averaged in these parts; `attested`: samples attested by reducers.
        `samples`: their sum in the average. If the round `is_step`, the keeper credits `counted` and
        records the step's duration. Claims are false only if they leave the batch short of samples.
        """
        if is_step and self._own.role == "keeper":
            age_s = self.course.age_s(self.step, self._clocks.local())
            self._credits.take(counted, age_s, self.course.allowances.of)
        if attested:
            with self._lock:
                self.course.round_ended(self.step, weights, attested, samples < self.target_batch_size)

    def heed(self, found: Finding) -> None:
        """Process the node's finding about another peer, from a successful or failed round."""
        with self._lock:
            if found.kind == "parts":
                self.course.parts_refused(self.step, {found.peer_id: found.detail})
            else:
                self.course.suspect(found.peer_id, found.kind, self.step, found.detail)

    def keepers_are(self, keepers: Collection[str]) -> None:
        """Set the IDs of the run's keepers, one of which may have a new identity."""
        with self._lock:
            self._keepers = frozenset(keepers)
            if not self._voters:
                self.course.expect((), self._known_keepers, self.step)

    # what this peer tells

    @property
    def publish_in_s(self) -> float:
        """The seconds until this peer's record is to be published."""
        published_at, stage, samples = self._published
        if stage != self._stage or self._samples < samples:
            return 0.0
        due_s = self._refresh.heartbeat_s
        if self._has_more and not self.is_led:  # its leader, or its followers, hear of its samples at once
            due_s = min(due_s, report_interval_s(len(self.view.live), self.remaining_s, self._refresh.longest_s))
        return max(0.0, published_at + due_s - self._clocks.local())

    @property
    def _stage(self) -> object:
        """The values whose changes are published immediately."""
        return self.step, self.era, self._is_training, self._slow_line, self._steering, self.sketch

    def publication(self) -> PeerRecord:
        """Return this peer's record, which is published now."""
        with self._lock:
            self._has_more = False
            self._published = self._clocks.local(), self._stage, self._samples
            return self.record()

    def not_published(self) -> None:
        """Note that the record could not be published."""
        self._published = -math.inf, None, 0

    def message(self) -> bytes:
        """Return this peer's record as a message to the leader, which is the same until the record changes."""
        if self._own.role == "keeper":  # it follows nobody
            return b""
        news = self._stage, self._samples, self.rate.per_second, self.target_batch_size
        if news != self._reported[0]:
            self._reported = news, self.record().report()
        return self._reported[1]

    def _tell(self) -> None:
        self._has_more = True
        self.on_due()

    def record(self) -> PeerRecord:
        """Return this peer's record."""
        return PeerRecord(
            step=self.step,
            samples=claim_of(self._samples, self.target_batch_size),
            rate=min(self.rate.per_second, MAX_RATE),
            time=self._clocks.swarm(),
            training=self._is_training,
            era=self.era,
            client_mode=self._own.client_mode,
            slow_line=self._slow_line,
            sketch=self.sketch,
            course=self._course() if self._own.role == "keeper" else None,
        )

    def _course(self) -> Course:
        """Return the beacon's course, which lists only credits above a newcomer's claim limit."""
        allowances = self.course.allowances
        return Course(
            age_s=self.course.age_s(self.step, self._clocks.local()),
            usual_s=self._credits.usual_s,
            credits=self._credits.credits_above(allowances.share * allowances.target / GROWTH),
            steering=self._steering,
        )

    # what this peer learns

    @property
    def look_in_s(self) -> float:
        """The seconds until the records are to be read."""
        return max(0.0, self._read_at - self._clocks.local())

    def look_now(self) -> None:
        """Have the records read now, before the scheduled time."""
        with self._lock:
            self._read_at = self._clocks.local()
        self.on_due()

    def look_begins(self) -> None:
        """Note that the records are being read; a request made from now on reads them again."""
        with self._lock:
            self._read_at = math.inf

    def look(self, peers: list[KnownPeer]) -> None:
        """Process the records of all peers, which were just read."""
        with self._lock:
            self._read_at = min(self._read_at, self._look(peers))

    def hear(self, heard: Heard) -> None:
        """Process what this peer's leader or its followers have sent, before the records show it."""
        now = self._clocks.local()
        if heard.count is not None:
            samples, remaining_s = heard.count
            self._led = Led(heard.position, now, samples, now + remaining_s)
        if heard.reports:
            self._led = Led(heard.position, now)
            self._hear_reports(heard.reports)
        if heard.gone_on:
            with self._lock:
                self._is_told_behind |= heard.position == (self.era, self.step)
            self.look_now()

    def _hear_reports(self, reports: Mapping[str, bytes]) -> None:
        with self._lock:
            known = {peer.peer_id: peer for peer in self._read}
            for peer_id in reports.keys() & known.keys():
                try:
                    known[peer_id] = replace(known[peer_id], record=PeerRecord.read_report(reports[peer_id]))
                except ValueError as error:
                    logger.info("%s sent its leader no valid report: %s", peer_id, error)
            self._read_at = min(self._read_at, self._look(list(known.values())))
        if reports.keys() - known.keys() and self._clocks.local() >= self._asked_at + UNKNOWN_S:
            self._asked_at = self._clocks.local()
            self.look_now()  # the records may show these peers by now

    def _look(self, peers: list[KnownPeer]) -> float:
        """Evaluate the newest records; return the local time at which the next read is due."""
        now, local = self._clocks.swarm(), self._clocks.local()
        self._read = records = self._newest.take(peers, now)
        self.view = view = self.course.look(self._with_own(records), self.target_batch_size, local)
        self._infer_voters()
        if self.on_caps is not None:
            self.on_caps(*self.course.weight_caps())
        if view.keepers:
            self._keeper_seen_at = now
        self.swarm_step = view.step if view.trainers else max(view.step, self.step)
        self._swarm_samples = view.samples
        return local + self._next_look_s(view)

    def _infer_voters(self) -> None:
        """Take the peers that report a keeper's state for its voters, after a restart or a download of the state.

        Otherwise, this keeper might take a step that most of them have taken without it. They are
        found once, when all have had time to appear: who reports the state later has it from this
        keeper. Those that a donor has named are added. It is a guess, which holds up the run for a
        time only.
        """
        now = self._clocks.local()
        if self._infers_voters and self.course.has_met_all(now):
            self._infers_voters = False
            if holders := self.course.holders(self.step, self.sketch) | self.named_voters:
                self._voters, self._inferred_at = holders | {self.own_id}, now
                self.course.expect(self._voters, self._known_keepers, self.step, are_inferred=True)
        elif (
            self._inferred_at is not None and now > self._inferred_at + INFERRED_LIFETIMES * self._refresh.expiration_s
        ):
            self._voters, self._inferred_at = frozenset(), None
            self.course.expect((), self._known_keepers, self.step)

    def _next_look_s(self, view: SwarmView) -> float:
        is_behind, now = self._is_told_behind or view.step > self.step, self._clocks.local()
        self._behind_since = None if not is_behind else now if self._behind_since is None else self._behind_since
        if self._behind_since is not None:  # it may be downloading a state for hours, or stand by
            remaining_s = now - self._behind_since
        elif self._reducing_since is not None:
            remaining_s = now - self._reducing_since
        elif self._led_s and view.keepers:
            return self._led_s
        else:
            remaining_s = view.usual_remaining_s(self.target_batch_size)
        longest_s = self._refresh.longest_s if view.keepers else min(self._refresh.longest_s, GREETING_PERIOD_S / 2)
        return look_interval_s(len(view.live), remaining_s, self._refresh.shortest_s, longest_s)

    def _with_own(self, peers: list[KnownPeer]) -> list[KnownPeer]:
        """Return the records, with this peer's published record replaced by its current record."""
        own = self._own
        others = [peer for peer in peers if peer.peer_id != own.peer_id]
        if not self._is_training:
            return others
        return [*others, KnownPeer(own.peer_id, own.member, own.device_id, own.role, self.record())]
