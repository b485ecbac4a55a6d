"""One peer's averaging rounds in virtual time, with retries (see `peer.swarm.step_rounds`)."""

from __future__ import annotations

import math
from typing import Any

import simpy

from peer.averaging.absences import Absences, absent_of
from peer.averaging.averager import MISSED_ROUNDS
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.declarations import MOST_MISSED, Declaration
from peer.averaging.meetings import LEAST_GRACE_S, MOST_GRACE_S
from peer.averaging.rounds import RoundDeadline
from peer.averaging.shares import missing_auxiliaries
from peer.network.traffic import passes_in_time
from peer.rehearsal.groups import FailedRound, MetGroup, Seeker
from peer.rehearsal.scenario import Rehearsed
from peer.rehearsal.tracker import VirtualTracker
from peer.rehearsal.troubles import Process
from peer.rehearsal.world import Taking, World
from peer.swarm.decision import Demands, demands_on_group, may_average_alone, patience_s
from peer.swarm.step_rounds import RETRY_S, UNAWAITED_GROUPS


class VirtualRounds:
    """The rounds of one peer with all peers at its step."""

    def __init__(
        self, world: World, peer: Taking, device: Rehearsed, tracker: VirtualTracker, left: simpy.Event
    ) -> None:
        """Set up the rounds; the event `left` succeeds when the peer is asked to leave."""
        averaging = world.config.averaging
        self._world, self._env, self._peer, self._device = world, world.env, peer, device
        self._tracker, self._left = tracker, left
        self._timeout_s = averaging.averaging_timeout_s
        self._code = averaging.code
        self._line = LineEstimate(world.declared_rate(device), lambda: world.env.now, world.rng)
        self._deadline = RoundDeadline(averaging.averaging_timeout_s)
        self._grace = RoundDeadline(MOST_GRACE_S, LEAST_GRACE_S)
        self._missed = Absences(free=0, first_rounds=MISSED_ROUNDS)
        self._absences = Absences(free=1, first_rounds=UNAWAITED_GROUPS)
        self.attempts = 0  # failed rounds of the current step
        self._met_nobody = False
        self._computes_until = -math.inf
        self._due_since = math.inf
        self._seeker: Seeker | None = None
        self.missing_auxiliaries: int | None = None

    def prepare(self) -> None:
        """Meet the peers at this step before the batch is full."""
        if self._seeker is None:
            self._seek()

    @property
    def has_begun(self) -> bool:
        """Whether the leader has started this peer's group and waits for this peer."""
        return self._seeker is not None and self._seeker.is_running and self._seeker.weight is None

    @property
    def is_full(self) -> bool:
        """Whether the batch is full according to the records, or the leader has started the group."""
        return self.has_begun or (self._env.now >= self._computes_until and self._tracker.is_full)

    @property
    def begins(self) -> simpy.Event:
        """Succeeds when the leader of this peer's group begins."""
        return self._env.event() if self._seeker is None else self._seeker.runs

    def begin_step(self) -> None:
        """Begin a new step, and give up the group of the last step."""
        self.attempts, self._computes_until = 0, -math.inf
        self.cancel()
        self._measure_when_due()

    def _measure_when_due(self) -> None:
        if self._line.is_due():
            self._line.measured(self._world.lines.rate(self._peer.name))

    @property
    def line_is_too_slow(self) -> bool:
        """Whether this trainer's connection is so slow that the whole round would fail."""
        is_slow = not passes_in_time(self._world.gradient_bytes, self._line.rate, self._timeout_s)
        return self._peer.role == "trainer" and is_slow

    def stand_by(self) -> None:
        """Stop searching for groups until a faster connection is measured."""
        self.cancel()
        self._line.doubt()
        self._measure_when_due()

    def cancel(self) -> None:
        """Give up the current search or round."""
        if self._seeker is not None:
            self._world.groups.give_up(self._seeker)
            self._seeker = None

    def average_when_due(self) -> Process:
        """Average, with retries on failure; return None if this peer should compute or leave."""
        tracker = self._tracker
        self._due_since = self._env.now
        try:
            while self.is_full and not (self._left.triggered or self.line_is_too_slow):
                group = yield from self._average()
                if group is not None:
                    return group
                self.attempts += 1
                yield self._env.timeout(RETRY_S)
                tracker.look_if_due()
                if self._met_nobody or tracker.view.averaging <= 1:
                    self._computes_until = 2 * self._env.now - self._due_since
                    break
        finally:
            self._due_since = math.inf
        return None

    def _average(self) -> Process:
        """Average with all peers at this step; return None if that fails."""
        tracker, self._met_nobody = self._tracker, False
        if tracker.view.averaging <= 1 and not self.has_begun:
            return self._own_average()
        here, began = tracker.view.here, self._env.now
        group = yield from self._await_group(began)
        if group is None:
            return None
        self._absences.round_ended(here - group.peers)
        self._deadline.succeeded(group.seconds)
        self._missed.round_ended()
        self._line.passed(group.traffic)
        if tracker.usual_s:
            self.missing_auxiliaries = missing_auxiliaries(group.lines, group.traffic.promised_s, tracker.usual_s)
        short = group.samples < self._world.target
        tracker.round_ended(group, short=short)
        return None if short else group

    def _own_average(self) -> MetGroup | None:
        tracker, samples = self._tracker, self._peer.due_samples
        if not may_average_alone(self._peer.name, tracker.quorum, samples, self._world.target):
            return None
        return MetGroup.alone(self._world.groups.next_number(), self._peer.name, samples, self._env.now)

    def _await_group(self, began: float) -> Process:
        """Wait for a complete round; return its group, or None if this peer gives up."""
        tracker, groups, failed_rounds = self._tracker, self._world.groups, 0
        seeker = self._seeker or self._seek()
        groups.begin(seeker, float(self._peer.due_samples))
        while True:
            groups.demand(seeker, self._demands(), tracker.quorum, awaits_keeper=tracker.course.hears_keeper)
            if not seeker.done.triggered:
                news = seeker.done if seeker.is_running else seeker.done | seeker.runs | self._left
                yield news | self._env.timeout(max(0.05, tracker.look_at - self._env.now))
            if seeker.done.triggered:
                result: Any = seeker.done.value
                self._seeker = None
                if isinstance(result, MetGroup):
                    return result
                if result.reducers:
                    failed_rounds += 1
                    self._round_failed(result)
                seeker = self._seek()
                groups.begin(seeker, float(self._peer.due_samples))
            tracker.look_if_due()
            late_s = self._env.now - began - self._timeout_s
            left_behind = failed_rounds > 0 and tracker.progress.step > self._peer.step
            wanted = tracker.is_full and not self._left.triggered
            is_over = late_s > self._timeout_s and (self._left.triggered or tracker.progress.step > self._peer.step)
            if is_over or (not seeker.is_running and (late_s > 0 or left_behind or not wanted)):
                self.cancel()
                self._met_nobody = not failed_rounds
                self._world.tell(self._peer.name, "found no group", self._peer.step)
                return None

    def _seek(self) -> Seeker:
        peer = self._peer
        words = Declaration.model_construct(
            run="",
            era=peer.era,
            step=peer.step,
            compression=self._code[0],
            powersgd_rank=self._code[1],
            rate=self._line.rate,
            takes_connections=not peer.is_client,
            patience_s=self._deadline.seconds,
            accused=[],
            missed=self._missed.newest(MOST_MISSED),
        )
        self._seeker = Seeker(
            name=peer.name,
            member=peer.member,
            role=peer.role,
            leads=not peer.is_client,
            words=words,
            demands=self._demands(),
            quorum=self._tracker.quorum,
            awaits_keeper=self._tracker.course.hears_keeper,
            course=self._tracker.course,
            grace=self._grace,
            done=self._env.event(),
            runs=self._env.event(),
        )
        self._world.groups.look((peer.era, peer.step), self._seeker)
        return self._seeker

    def _demands(self) -> Demands:
        tracker = self._tracker
        return demands_on_group(
            tracker.view,
            step=self._peer.step,
            own_id=self._peer.name,
            left_out=self._absences.current(),
            attempts=self.attempts,
            has_waited=self._env.now - self._due_since > patience_s(self._timeout_s, tracker.usual_s),
        )

    def _round_failed(self, result: FailedRound) -> None:
        self._missed.round_ended(absent_of(result.missed, result.reducers | {self._peer.name}))
        if not self._missed.current():
            self._deadline.failed()
        self._line.failed()
        self._measure_when_due()
        self._world.tell(self._peer.name, "round failed", self._peer.step, ",".join(sorted(result.missed)))
