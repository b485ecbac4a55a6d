"""The tracker of the swarm's progress towards the next global step, from signed DHT records.

hivemind's tracker begins a step at an *estimated* time and trusts the highest claimed step. This
tracker waits for enough reported samples and uses the step in `peer.swarm.view`.

Each read fetches changes from several nodes, and each report is sent to several nodes. Because home
connections are slow, both are rare while the batch is far from full (`peer.swarm.refresh`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hivemind.dht import DHT
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID

from auth.clock import swarm_time
from auth.swarm.access import SwarmAccess
from auth.swarm.authorizer import RecordKey, checked_token, peers_key, record_subkey
from auth.tokens import AccessToken
from peer.averaging.meetings import Heard
from peer.config.steering import Steering
from peer.node.quorum import Quorum
from peer.reduction.attestation import AttestedWeight
from peer.reduction.findings import Finding
from peer.reduction.shared_caps import WeightCaps
from peer.reporting.suspicions import Suspicions
from peer.swarm.credit import GROWTH, CreditBook
from peer.swarm.decision import candidates
from peer.swarm.dht import greet, peer_ids_of
from peer.swarm.fingerprint import Sketch, drifted
from peer.swarm.records import MAX_RATE, Course, KnownPeer, NewestRecords, PeerRecord, read_records
from peer.swarm.refresh import UNKNOWN_S, look_interval_s, report_interval_s
from peer.swarm.view import GREETING_PERIOD_S, SwarmCourse, SwarmView, claim_of

logger = logging.getLogger(__name__)
LED_SHARE = 0.7  # of the interval between heartbeats: how often a peer with a leader reads and publishes records
NOTHING_SEEN = SwarmView(0, 0, 0, 0, 0.0, ())


@dataclass(frozen=True)
class Led:
    """The newest message between this peer and its leader, or its followers."""

    position: tuple[int, int]  # era and step
    at: float  # local time in seconds
    samples: int = 0  # samples of the batch that the leader counts; 0 if this peer leads
    full_at: float | None = None  # local time at which the batch will be full; None if this peer leads


class StepTracker(ProgressTracker):
    """hivemind's progress tracker on signed records; see the module's docstring."""

    def __init__(
        self,
        dht: DHT,
        *,
        access: SwarmAccess,
        key: RecordKey,
        role: str,
        keeper_ids: Iterable[PeerID] = (),
        newcomer_share: float,
        caps: WeightCaps,
        suspicions: Suspicions,
        metadata_expiration: float,
        **kwargs: Any,
    ) -> None:
        self.local_progress: LocalTrainingProgress
        self.global_progress: GlobalTrainingProgress
        self.own_id = dht.peer_id.to_base58()
        self.era = 0  # number of times that the run had returned to a checkpoint before this peer's state
        self.course = SwarmCourse(
            own_id=self.own_id,
            is_keeper=role == "keeper",
            silent_after_s=metadata_expiration / 2,  # the keeper publishes at least twice in this time
            first_step_s=metadata_expiration,
            least_share=newcomer_share,
            suspicions=suspicions,
        )
        self._caps = caps
        self._newest = NewestRecords(metadata_expiration)
        self._credits = CreditBook()
        self._own_token = access.credentials.access_token(access.clock())
        self._access = access
        self._role = role
        self._training = role == "keeper"
        self._slow_line: float | None = None
        self._steering = Steering()
        self._sketch: tuple[int, Sketch] = (-1, ())
        self._keeper_ids = tuple(keeper_ids)
        self._keeper_addresses: tuple[str, ...] = ()  # addresses received since joining
        self._greeted_at = float("-inf")
        self._published: tuple[float, object, int] = (float("-inf"), None, 0)  # last report: time, stage, samples
        self._reducing_since: float | None = None
        self._joined_at = swarm_time()
        self._keeper_seen_at = swarm_time() if self._keeper_ids else float("-inf")  # joining counts as seeing a keeper
        self._voters = frozenset[str]()  # the peers that took this peer's newest step; empty: unknown
        self.view = NOTHING_SEEN
        self._led = Led((0, 0), -math.inf)
        self._asked_at = -math.inf  # time of the last read for the sake of an unknown follower
        self.heartbeat_s = metadata_expiration / 4
        self._reported: PeerRecord | None = None  # the newest record for the leader
        self._looking = threading.Lock()
        self._read: list[KnownPeer] = []  # the newest record of each peer in the last read
        super().__init__(dht, private_key=key, start=False, metadata_expiration=metadata_expiration, **kwargs)
        self.training_progress_key = peers_key(access.run)
        self._owner = record_subkey(dht.peer_id.to_base58())

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether the reported samples fill the global batch of this peer's next step."""
        progress = self.global_progress
        return progress.epoch == self.local_progress.epoch and progress.samples_accumulated >= self.target_batch_size

    @property
    def step(self) -> int:
        """The number of global steps included in this peer's state."""
        return int(self.local_progress.epoch)

    @property
    def is_held(self) -> bool:
        """Whether the operator has paused or ended the run."""
        steering = self.course.steering
        return steering.paused or steering.has_ended(self.step)

    @property
    def swarm_step(self) -> int:
        """The swarm's step, as far as this peer knows."""
        return int(self.global_progress.epoch)

    @property
    def keeper_may_be_late(self) -> bool:
        """Whether the keeper was seen recently, so that a missing record may only be late."""
        return swarm_time() - self._keeper_seen_at < self.metadata_expiration

    @property
    def leaders(self) -> tuple[str, ...]:
        """The IDs of the peers that may lead this step's group, preferred first."""
        is_new = swarm_time() - self._joined_at < self.metadata_expiration / 2
        keepers = (self.view.keeper_ids or self._known_keepers) if is_new or self.course.hears_keeper else ()
        others = self.view.reachable - self.view.keeper_ids
        return candidates(keepers, others, self._access.run, (self.era, self.step))

    @property
    def _known_keepers(self) -> frozenset[str]:
        if self._role == "keeper":
            return frozenset({self.own_id})
        return frozenset(keeper.to_base58() for keeper in self._keeper_ids)

    @property
    def quorum(self) -> Quorum:
        """The peers whose majority takes the next step."""
        return self.course.quorum(self._voters, self._known_keepers)

    def set_sketch(self, step: int, sketch: Sketch) -> None:
        """Set the sketch of this peer's state after `step`, for the reports of that step."""
        self._sketch = (step, sketch)

    def begin_step_after(self, step: int, era: int, voters: Collection[str]) -> None:
        """Begin the step after `step`, this peer's current step; call while updates are paused.

        A newer `era` resets the swarm's known progress, which belongs to the older era. `voters`:
        the peers that took `step`, or none if unknown.
        """
        with self._looking:  # otherwise, a report that is just being processed would take the step back
            self._voters = frozenset(voters)
            self.course.expect(voters, self._known_keepers)
            if era > self.era:
                self.global_progress.epoch, self.global_progress.samples_accumulated = step, 0
            self.era = era
            self.update_epoch(new_epoch=step)

    @property
    def sketch(self) -> Sketch:
        """The sketch of this peer's own state."""
        return self._sketch[1]

    def carry_over(self, samples: int) -> None:
        """Start this step's count with samples computed earlier; call while updates are paused."""
        self.local_progress = self._get_local_progress(self.local_progress.epoch, samples)
        self.should_report_progress.set()

    @property
    def has_drifted(self) -> bool:
        """Whether the keeper's state after the same step clearly differs from this peer's."""
        step, sketch = self._sketch
        return self._role != "keeper" and step == self.view.step and drifted(sketch, self.view.keeper_sketch)

    def round_ended(
        self,
        weights: Mapping[str, float],
        counted: Mapping[str, float],
        attested: Mapping[str, AttestedWeight],
        *,
        short: bool,
    ) -> None:
        """Process the samples of a round towards the next step; the mappings are by peer ID.

        `weights`: the samples declared by the senders of the parts that this peer reduced;
        `counted`: the samples averaged in these parts; `attested`: samples attested by reducers.
        `short`: whether there are too few samples for a step; if not, the keeper credits `counted`.
        """
        step = self.local_progress.epoch
        if counted and not short and self._role == "keeper":
            self._credits.take(counted, self.course.age_s(step, time.monotonic()), self.course.allowances.of)
        if attested:
            self.course.round_ended(step, weights, attested, short)

    @property
    def is_undone(self) -> bool:
        """Whether this peer's state predates the run's last rewind to a checkpoint."""
        return self._role != "keeper" and self.course.era > self.era

    def heed(self, findings: Iterable[Finding]) -> None:
        """Process the averager's findings about other peers, from successful and failed rounds."""
        step, findings = self.local_progress.epoch, list(findings)
        refused = {found.peer_id: found.detail for found in findings if found.kind == "parts"}
        self.course.parts_refused(step, refused)
        self.course.suspect_all((found for found in findings if found.kind != "parts"), step)

    def steer(self, steering: Steering) -> None:
        """Set the operator's steering in the beacon, which all peers and the keeper follow."""
        if steering != self._steering:
            self._steering = steering
            self.should_report_progress.set()

    def is_reducing(self, reduces: bool) -> None:
        """Set whether this peer's group is averaging; reads are then rarer, to save bandwidth."""
        began_at = self._reducing_since
        self._reducing_since = None if not reduces else time.monotonic() if began_at is None else began_at
        if not reduces and began_at is not None:
            self.look_now()

    def look_now(self) -> None:
        """Read the records now, before the scheduled time."""
        with self._looking:  # otherwise, a report that is just being processed would put the time off again
            self.global_progress.next_fetch_time = swarm_time()
        self.global_state_updated.set()

    def begin_training(self) -> None:
        """Announce that this peer trains, so that others wait for it when they average."""
        if not self._training:
            self._training = True
            self.should_report_progress.set()

    def stand_by(self, slow_line: float | None) -> None:
        """Announce that this peer is on standby, so that others need not wait for it.

        `slow_line`: this peer's bandwidth in bytes per second; None withdraws the announcement.
        """
        if slow_line != self._slow_line or (slow_line is not None and self._training):
            self._slow_line = slow_line
            self._training = self._training and slow_line is None
            self.should_report_progress.set()

    def publish(self, timeout_s: float = 10.0) -> bool:
        """Store this peer's record now; return whether any node accepted it."""
        now = swarm_time()
        record = self._record(now)
        self._published = (time.monotonic(), self._stage, record.samples)
        return bool(
            self.dht.store(
                key=self.training_progress_key,
                subkey=self._owner,
                value=record.pack(),
                expiration_time=now + self.metadata_expiration,
                return_future=True,
            ).result(timeout_s)
        )

    def _record(self, now: float) -> PeerRecord:
        progress = self.local_progress
        return PeerRecord(
            step=progress.epoch,
            samples=claim_of(progress.samples_accumulated, self.target_batch_size),
            rate=min(float(progress.samples_per_second), MAX_RATE),
            time=now,
            training=self._training,
            era=self.era,
            client_mode=self.client_mode,
            slow_line=self._slow_line,
            sketch=self._sketch[1] if self._sketch[0] == progress.epoch else (),
            course=self._course() if self._role == "keeper" else None,
        )

    def _course(self) -> Course:
        """Return the beacon's course, which lists only credits above a newcomer's claim limit."""
        allowances = self.course.allowances
        return Course(
            age_s=self.course.age_s(self.local_progress.epoch, time.monotonic()),
            usual_s=self._credits.usual_s,
            credits=self._credits.credits_above(allowances.share * allowances.target / GROWTH),
            steering=self._steering,
        )

    async def _progress_reporter(self) -> None:
        """Publish the record on progress, at limited intervals, and as a heartbeat."""
        loop = asyncio.get_running_loop()
        while not self.shutdown_triggered.is_set():
            await loop.run_in_executor(None, self.should_report_progress.wait, self.heartbeat_s)
            await loop.run_in_executor(None, self._await_turn)
            if self.shutdown_triggered.is_set():
                break
            await loop.run_in_executor(None, self._publish_quietly)

    def _await_turn(self) -> None:
        """Wait until additional samples may be reported; any other change is reported at once."""
        while True:
            self.should_report_progress.clear()
            published_at, stage, samples = self._published
            progress = self.local_progress
            is_news = stage != self._stage or progress.samples_accumulated < samples
            due_in_s = self._led_s or report_interval_s(len(self.view.live), self.remaining_s, self.max_refresh_period)
            left_s = published_at + due_in_s - time.monotonic()
            if is_news or left_s <= 0 or self.shutdown_triggered.is_set():
                return
            self.should_report_progress.wait(left_s)

    @property
    def _stage(self) -> object:
        """The values whose changes are published immediately."""
        training = self._training, self._slow_line
        return self.local_progress.epoch, self.era, training, self._steering, self._sketch

    @property
    def missing_samples(self) -> int:
        """The samples missing from the batch according to the records, or to the leader."""
        told = self._led.samples if self.is_led else 0
        return max(0, self.target_batch_size - max(told, int(self.global_progress.samples_accumulated)))

    @property
    def remaining_s(self) -> float:
        """The seconds until the batch is full, told by the leader or at the reported rates; infinite if unknown."""
        if self.is_led and self._led.full_at is not None:
            return max(0.0, self._led.full_at - time.monotonic())
        if self.view.step != self.step:
            return math.inf
        return self.view.remaining_s(self.own_id, self.missing_samples, swarm_time(), self.max_refresh_period)

    @property
    def is_led(self) -> bool:
        """Whether this peer has lately heard from its leader, or its followers, at this step."""
        is_fresh = time.monotonic() - self._led.at < self.heartbeat_s
        return is_fresh and self._led.position == (self.era, self.step)

    @property
    def _led_s(self) -> float:
        """The interval between reads, and between records, of a peer that depends less on them; 0 for others."""
        return LED_SHARE * self.heartbeat_s if self.is_led else 0.0

    def _publish_quietly(self) -> None:
        try:
            self.publish()
        except Exception as error:  # noqa: BLE001 - fault boundary: the next heartbeat retries
            logger.info("this peer's record was not stored: %r", error)
            time.sleep(min(1.0, self.heartbeat_s))

    def _greet_lost_keeper(self) -> None:
        """Ping a keeper that is not visible, because a restarted keeper knows no peers."""
        if self._keeper_ids and swarm_time() > self._greeted_at + GREETING_PERIOD_S:
            self._greeted_at = swarm_time()
            greeting = partial(greet, peer_ids=self._keeper_ids, addresses=self._keeper_addresses)
            self.dht.run_coroutine(greeting, return_future=True)

    def keeper_at(self, addresses: Iterable[str]) -> None:
        """Set the current addresses of the keeper."""
        self._keeper_addresses = tuple(addresses)
        self._keeper_ids = peer_ids_of(self._keeper_addresses)
        with self._looking:
            if not self._voters:
                self.course.expect((), self._known_keepers)
        self._greeted_at = float("-inf")

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        """Convert records (a dictionary with expirations) to hivemind's type; update the view."""
        return self._look_at(read_records(metadata, self._check))

    def hear(self, heard: Heard) -> None:
        """Process what this peer's leader or its followers have sent, before the DHT has it."""
        now = time.monotonic()
        if heard.count is not None:
            samples, remaining_s = heard.count
            self._led = Led(heard.position, now, samples, now + remaining_s)
        if heard.reports:
            self._led = Led(heard.position, now)
            self._hear_reports(heard.reports)
        if heard.gone_on:
            self.look_now()

    def _hear_reports(self, reports: Mapping[str, bytes]) -> None:
        with self._looking:
            known = {peer.peer_id: peer for peer in self._read}
            for peer_id in reports.keys() & known.keys():
                try:
                    known[peer_id] = replace(known[peer_id], record=PeerRecord.read_report(reports[peer_id]))
                except ValueError as error:
                    logger.info("%s sent its leader no valid report: %s", peer_id, error)
            progress = self._progress(list(known.values()))
            progress.next_fetch_time = min(progress.next_fetch_time, self.global_progress.next_fetch_time)
            self.global_progress = progress
        if reports.keys() - known.keys() and time.monotonic() >= self._asked_at + UNKNOWN_S:
            self._asked_at = time.monotonic()
            self.look_now()  # the DHT may show these peers by now

    def report(self) -> bytes:
        """Return this peer's record as a message to the leader, which is the same until the record changes."""
        if self._role == "keeper":  # it follows nobody
            return b""
        known = self._reported
        record = self._record(swarm_time() if known is None else known.time)
        if known is None or record != known:
            self._reported = known = record.model_copy(update={"time": swarm_time()})
        return known.report()

    def _look_at(self, peers: list[KnownPeer]) -> GlobalTrainingProgress:
        with self._looking:  # the listener's thread hears reports, and hivemind's thread reads the DHT
            return self._progress(peers)

    def _progress(self, peers: list[KnownPeer]) -> GlobalTrainingProgress:
        now, own = swarm_time(), self.local_progress
        self._read = records = self._newest.take(peers, now)
        self.view = view = self.course.look(self._with_own(records), self.target_batch_size, time.monotonic())
        self._caps.publish(*self.course.weight_caps())
        if view.keepers:
            self._keeper_seen_at = now
        else:
            self._greet_lost_keeper()
        remaining_s = view.usual_remaining_s(self.target_batch_size)
        return GlobalTrainingProgress(
            epoch=max(view.step, own.epoch) if view.trainers == 0 else view.step,
            samples_accumulated=view.samples,
            target_batch_size=self.target_batch_size,
            num_peers=view.averaging,
            num_clients=0,
            eta_next_epoch=now + remaining_s,
            next_fetch_time=now + self._next_look_s(view, remaining_s),
        )

    def _next_look_s(self, view: SwarmView, remaining_s: float) -> float:
        began_at = self._reducing_since
        if view.step > self.local_progress.epoch:
            remaining_s = 0.0
        elif began_at is not None:
            remaining_s = time.monotonic() - began_at
        elif self._led_s and view.keepers:
            return self._led_s
        longest_s = self.max_refresh_period if view.keepers else min(self.max_refresh_period, GREETING_PERIOD_S / 2)
        return look_interval_s(len(view.live), remaining_s, self.min_refresh_period, longest_s)

    def _with_own(self, peers: list[KnownPeer]) -> list[KnownPeer]:
        """Return the records, with this peer's published record replaced by its current record."""
        others = [peer for peer in peers if peer.peer_id != self.own_id]
        if not self._training:
            return others
        token, record = self._own_token, self._record(swarm_time())
        return [*others, KnownPeer(self.own_id, token.member, token.device_id, self._role, record)]

    def _check(self, jwt: str) -> AccessToken | None:
        return checked_token(self._access.credentials, jwt, self._access.clock())

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop tracking, and announce that others need not wait for this peer."""
        for event in self.shutdown_triggered, self.should_report_progress, self.global_state_updated:
            event.set()
        if self.is_alive():
            self.shutdown_complete.wait(timeout)
        self._training, self._slow_line = False, None
        self._publish_quietly()
