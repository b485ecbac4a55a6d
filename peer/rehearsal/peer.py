"""One peer in virtual time: `peer.swarm.swarm` and `peer.training.trainer` as a process of the rehearsal.

The moves are decided where the product decides them; here they are made in virtual time. States are not computed: a
state is the number of steps that it has taken.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import simpy

from peer.averaging.absences import Absences, absent_of
from peer.averaging.averager import MISSED_ROUNDS
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.declarations import MOST_MISSED, Declaration
from peer.averaging.matchmaking import LEAST_WINDOW_S
from peer.averaging.rounds import RoundDeadline
from peer.averaging.shares import missing_auxiliaries
from peer.config.steering import Steering
from peer.protocol import HELD_AVERAGES
from peer.reduction.attestation import AttestedWeight
from peer.rehearsal.groups import FailedRound, MetGroup, Seeker
from peer.rehearsal.lines import Process
from peer.rehearsal.scenario import Rehearsed
from peer.rehearsal.world import World
from peer.reporting.messages import LostCause
from peer.swarm.credit import GROWTH, CreditBook
from peer.swarm.decision import (
    Demands,
    DownloadPause,
    Move,
    Situation,
    decide,
    demands_on_group,
    longest_hold_s,
    may_average_alone,
    patience_s,
    samples_at_once,
)
from peer.swarm.records import Course, KnownPeer, PeerRecord
from peer.swarm.refresh import longest_refresh_s, look_interval_s, report_interval_s
from peer.swarm.state import AT_ONCE, FOLLOWERS_AT_ONCE, Donations
from peer.swarm.step_rounds import RETRY_S, UNAWAITED_GROUPS
from peer.swarm.swarm import LOOK_AGAIN_S
from peer.swarm.tracker import NOTHING_SEEN
from peer.swarm.view import GREETING_PERIOD_S, MOST_BATCHES, SwarmCourse, claim_of

AVERAGE_BYTES, STATE_BYTES = 2, 8  # a value, of an average in 16 bits, and of a state
START_S = 15.0  # of a program: imports, the p2p daemon, admission; measured by `benchmarks.join`
POLL_S = 0.5  # where the product waits for shorter: nothing changes between two looks


@dataclass
class Work:
    """What became of one device's samples, over all its visits; and its time."""

    computed: int = 0
    counted: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    present_s: float = 0.0  # since it held the run's state
    downloads: int = 0
    steps: int = 0  # that it was in


@dataclass
class Progress:
    """The swarm's progress as the tracker knows it."""

    step: int = 0
    samples: int = 0
    full_at: float = math.inf


class RehearsedPeer:
    """One visit of one device; the keeper and auxiliary peers have no speed."""

    def __init__(self, world: World, device: Rehearsed, role: str, work: Work) -> None:
        self.world, self.device, self.role, self.work = world, device, role, work
        self.name, self.member = device.name, device.member or device.name
        env, averaging = world.env, world.config.averaging
        self._env, self._averaging = env, averaging
        self.step, self.era = 0, 0
        self.samples = 0  # accumulated towards the step after `step`, or after the one that is being averaged
        self.held: int | None = None  # samples set aside for a round in the background
        self.is_training = role == "keeper"
        self.is_leaving = False
        self.left = env.event()
        self.has_state = role == "keeper"
        self.began_at: float | None = None  # when it held the run's state
        self._overlapping: simpy.Process | None = None
        # the tracker's
        expiration_s = averaging.statistics_expiration_s
        self._longest_look_s = longest_refresh_s(averaging.progress_refresh_s, expiration_s)
        self._course = SwarmCourse(
            own_id=self.name,
            is_keeper=role == "keeper",
            silent_after_s=expiration_s / 2,
            first_step_s=expiration_s,
            least_share=world.config.membership.newcomer_share,
            suspicions=world.suspicions_of(self.name),
        )
        self._credits = CreditBook()
        self.view = NOTHING_SEEN
        self._progress = Progress()
        self._look_at = 0.0
        self._keeper_seen_at = env.now
        self._published: tuple[float, object, int] = (-math.inf, None, 0)
        self._is_publishing = False
        # the rounds'
        self._line = LineEstimate(device.line.slower_rate, lambda: env.now, world.rng)
        self._deadline = RoundDeadline(averaging.averaging_timeout_s)
        self._window = RoundDeadline(averaging.matchmaking_time_s, LEAST_WINDOW_S)
        self._window_s = averaging.matchmaking_time_s
        self._missed = Absences(free=0, first_rounds=MISSED_ROUNDS)
        self._absences = Absences(free=1, first_rounds=UNAWAITED_GROUPS)
        self._attempts, self._met_nobody = 0, False
        self._due_view, self._due_since = self.view, math.inf
        self._seeker: Seeker | None = None
        self.missing_auxiliaries: int | None = None
        # the swarm's
        self._held_for = -1, 0.0
        self._held_after = self._unfollowed = -1
        self._has_late_samples = False
        self._changed_at = env.now
        self._pause = DownloadPause(lambda: env.now)
        self.followers = Donations(lambda: env.now, FOLLOWERS_AT_ONCE)
        self.takers = Donations(lambda: env.now, AT_ONCE)

    # the process

    def run(self) -> Process:
        """Take part until told to leave, or interrupted by the device's death."""
        try:
            if self.role != "keeper":
                yield self._env.timeout(START_S)
                yield from self._take_first_state()
            self.began_at = self._env.now
            if not self.is_leaving:
                self.has_state = True
                self._tell("joined", self.step)
                yield from (self._train() if self.role == "trainer" else self._assist())
            self.is_training = False
            self._publish()
        except simpy.Interrupt:
            pass
        finally:
            if self._seeker is not None:
                self.world.groups.give_up(self._seeker)
            if self._overlapping is not None and self._overlapping.is_alive:
                self._overlapping.interrupt()
            self.world.gone(self)
            self._lose(LostCause.LEFT, self._drop())
            self.stop()

    def stop(self) -> None:
        """Add the time since this peer held the run's state to its device's."""
        if self.began_at is not None:
            self.work.present_s += self._env.now - self.began_at
            self.began_at = None

    def resume(self, step: int, era: int) -> None:
        """Begin as a keeper that was killed after this step: it takes the members' state if they are further."""
        self.step, self.era = step, era
        self._begin_step()

    def leave(self) -> None:
        """Tell this peer to leave when it can."""
        self.is_leaving = True
        if not self.left.triggered:
            self.left.succeed()

    def _train(self) -> Process:
        assert self.device.samples_per_second is not None
        while not self.is_leaving:
            if not self._wants_samples:
                yield from self._advance()
                continue
            usual_s = self._course.allowances.usual_s
            rate = self.device.samples_per_second if self.is_training else 0.0
            samples = samples_at_once(self.world.config.data.microbatch_size, rate, usual_s)
            yield self._env.timeout(samples / self.device.samples_per_second)
            self.work.computed += samples
            self.samples += samples
            self.is_training = True
            self._report()
            yield from self._advance()

    def _assist(self) -> Process:
        self.is_training = True
        self._report()
        while not self.is_leaving:
            yield from self._advance()
            wait_s = self._look_at - self._env.now
            if wait_s > 0:
                yield self._env.timeout(wait_s) | self.left

    # the swarm

    def _advance(self) -> Process:
        """Make the next move; the counterpart of `Swarm.advance`."""
        self._look_if_due()
        if self._overlapping is not None:
            yield from self._conclude()
            return
        if decide(self._situation())[0] is Move.HOLD:
            yield from self._hold()
        move, _ = decide(self._situation())
        if move is Move.WAIT:
            yield from self._wait(self.world.rng.uniform(*LOOK_AGAIN_S))
        elif move is Move.FOLLOW:
            yield from self._follow()
        elif move is Move.DOWNLOAD:
            yield from self._catch_up()
        else:
            self._prepare()
            if move is Move.ACCUMULATE:
                if self._has_enough and self.role == "trainer":
                    yield from self._wait(POLL_S)
            elif move is Move.AVERAGE_BESIDE:
                self.held, self.samples = self.samples, 0
                self._overlapping = self._env.process(self._average_when_due())
            else:
                group = yield from self._average_when_due()
                if group is not None:
                    self._take_step(group)

    def _situation(self) -> Situation:
        may_follow = self.role != "keeper" and self._unfollowed != self.step
        rate = self._rate
        return Situation(
            step=self.step,
            swarm_step=self._progress.step,
            is_undone=self.role != "keeper" and self._course.era > self.era,
            can_follow=may_follow,
            may_download=self._pause.is_over or self.role == "keeper",
            is_leaving=self.is_leaving,
            is_full=self._is_full,
            remaining_s=self._remaining_s,
            microbatch_s=self.world.config.data.microbatch_size / rate if rate else 0.0,
            may_hold=self._held_after != self.step and rate > 0,
            may_overlap=self._averaging.delay and self.role != "keeper",
            others_arrive=self.view.arriving > 0
            and self._env.now - self._changed_at < self._averaging.matchmaking_time_s,
        )

    @property
    def _is_full(self) -> bool:
        return self._progress.step == self.step and self._progress.samples >= self.world.target

    @property
    def _rate(self) -> float:
        return (self.device.samples_per_second or 0.0) if self.is_training else 0.0

    @property
    def _due_samples(self) -> int:
        return self.samples if self.held is None else self.held

    @property
    def _wants_samples(self) -> bool:
        has_other = self._progress.step > self.step or self._course.era > self.era
        return not ((self._overlapping is None and has_other) or self._has_enough)

    @property
    def _has_enough(self) -> bool:
        return self.samples + (self.held or 0) >= MOST_BATCHES * self.world.target

    def _wait(self, seconds: float) -> Process:
        yield self._env.timeout(seconds) | self.left

    def _hold(self) -> Process:
        began, step = self._env.now, self.step
        held_before_s = self._held_for[1] if self._held_for[0] == step else 0.0
        longest_s = longest_hold_s(
            self._course.allowances.usual_s,
            self._averaging.progress_refresh_s,
            max(0, self.world.target - self._progress.samples),
            self.view.faster_rate(self.name),
        )
        self._prepare()
        self._look()
        while decide(self._situation())[0] is Move.HOLD:
            left_s = longest_s - (held_before_s + self._env.now - began)
            if left_s <= 0 or self.is_leaving:
                self._held_after = step
                break
            yield from self._wait(min(left_s, max(0.05, self._look_at - self._env.now)))
            self._look_if_due()
        self._held_for = step, held_before_s + self._env.now - began

    def _conclude(self) -> Process:
        """Take the step of a round in the background, once it has ended; wait for it where this peer is ahead."""
        assert self._overlapping is not None
        if self._is_ahead and self._overlapping.is_alive:
            yield self._overlapping | self._env.timeout(POLL_S)
        if self._overlapping.is_alive:
            return
        group, self._overlapping = self._overlapping.value, None
        if group is None:
            self._take_back()
        else:
            self._take_step(group)

    @property
    def _is_ahead(self) -> bool:
        all_rates = self.view.rate
        share = min(1.0, self._rate / all_rates) if all_rates > 0 else 1.0
        return self.samples >= share * self.world.target or self._has_enough

    def _take_back(self) -> None:
        self.samples, self.held = self.samples + (self.held or 0), None
        self._report()

    def _take_step(self, group: MetGroup) -> None:
        samples = self._due_samples
        self.step += 1
        if self.held is None:
            self.samples = 0
        self.held, self._has_late_samples = None, False
        self._pause.end()
        if self.role == "trainer":
            self.work.counted += samples
            self.work.steps += 1
        self.world.step_taken(self, group, samples)
        self._begin_step()

    def _begin_step(self) -> None:
        self._attempts, self._changed_at = 0, self._env.now
        if self._seeker is not None:
            self.world.groups.give_up(self._seeker)
            self._seeker = None
        if self.step > self._progress.step:
            self._progress = Progress(self.step)
        if self._line.is_due():
            self._line.measured(self.world.line_rate(self.name))
        self._report()

    def _lose(self, cause: LostCause, samples: int) -> None:
        if samples and self.role == "trainer":
            self.work.lost[cause.value] += samples
            self._tell("lost", samples, cause.value)

    def _drop(self) -> int:
        lost, self.samples, self.held = self.samples + (self.held or 0), 0, None
        return lost

    def _why_lost(self) -> LostCause:
        if self._course.era > self.era:
            return LostCause.UNDONE
        return LostCause.AVERAGING if self._attempts else LostCause.LATE

    # another's state

    def _follow(self) -> Process:
        """Take the average of the first missed step from the keeper; its own samples are lost, or late ones kept."""
        keeps = (
            self._progress.step == self.step + 1
            and self._averaging.delay
            and not self._attempts
            and not self._has_late_samples
        )
        reason, donor = self._why_lost(), self.world.keeper
        if donor is None or donor.step - self.step > HELD_AVERAGES:
            self._unfollowed = self.step
            return
        if donor.step <= self.step:
            yield from self._wait(self.world.rng.uniform(*LOOK_AGAIN_S))
            return
        if not (yield from self._download(donor, donor.followers, AVERAGE_BYTES)):
            yield from self._wait(self.world.rng.uniform(*LOOK_AGAIN_S))
            return
        if not keeps:
            self._lose(reason, self._drop())
        self.step += 1
        self._has_late_samples = self.samples > 0
        self._tell("followed", self.step)
        self._begin_step()

    def _catch_up(self) -> Process:
        reason = self._why_lost()
        self._lose(reason, self._drop())
        began = self._env.now
        took = yield from self._take_state()
        self._pause.begin(self._env.now - began if took else None)
        self._unfollowed = -1
        self._begin_step()

    def _take_first_state(self) -> Process:
        while not self.is_leaving and not (yield from self._take_state()):
            self._look()
            yield from self._wait(self.world.rng.uniform(0.5, 1.5) * 2.0)
        self._look()
        self._begin_step()

    def _take_state(self) -> Process:
        """Download a state from the keeper or, while it is away, from another peer; return whether there was one."""
        donor = self.world.donor_for(self)
        if donor is None:
            return False
        step, era = donor.step, donor.era
        if not (yield from self._download(donor, donor.takers, STATE_BYTES)):
            return False
        self.step, self.era = step, era
        self.work.downloads += 1
        self._tell("took the state", step)
        return True

    def _download(self, donor: RehearsedPeer, places: Donations, value_bytes: int) -> Process:
        donation = places.begin(self.member, self.name)
        if donation is None:
            return False
        size = float(value_bytes * self.world.scenario.parameters)
        transfer = self.world.lines.send({(donor.name, "up"): size, (self.name, "down"): size})
        try:
            while not transfer.done.triggered and not self.is_leaving and self.world.is_here(donor):
                yield transfer.done | self.left | self._env.timeout(10.0)
                places.goes_on(donation)
        finally:
            self.world.lines.stop(transfer)
            places.end(donation, is_whole=transfer.done.triggered)
        return transfer.done.triggered

    # the rounds

    def _prepare(self) -> None:
        """Look for a group ahead of time when the batch will soon be full."""
        left_s = 0.0 if self._is_full else self._progress.full_at - self._env.now
        if self._seeker is None and left_s <= self._window_s:
            self._seek()

    def _seek(self) -> Seeker:
        words = Declaration.model_construct(
            run="",
            era=self.era,
            step=self.step,
            rate=self._line.rate,
            takes_connections=self.device.is_reachable,
            patience_s=self._deadline.seconds,
            accused=[],
            missed=self._missed.newest(MOST_MISSED),
        )
        self._seeker = Seeker(
            name=self.name,
            member=self.member,
            role=self.role,
            leads=self.device.is_reachable,
            words=words,
            demands=self._demands(),
            window_s=self._window_s,
            done=self._env.event(),
        )
        self.world.groups.look((self.era, self.step), self._seeker)
        return self._seeker

    def _demands(self) -> Demands:
        waited_s = self._env.now - self._due_since
        return demands_on_group(
            self.view,
            step=self.step,
            own_id=self.name,
            left_out=self._absences.current(),
            attempts=self._attempts,
            has_waited=waited_s > patience_s(self._averaging.averaging_timeout_s, self._course.allowances.usual_s),
            keeper_may_be_late=self._keeper_may_be_late,
            has_looked=self.view is not self._due_view,
        )

    @property
    def _keeper_may_be_late(self) -> bool:
        return self._env.now - self._keeper_seen_at < self._averaging.statistics_expiration_s

    def _average_when_due(self) -> Process:
        self._due_since = self._env.now
        try:
            while self._is_full and not self.is_leaving:
                group = yield from self._average()
                if group is not None:
                    return group
                self._attempts += 1
                yield self._env.timeout(RETRY_S)
                self._look_if_due()
                if self._met_nobody or self.view.averaging <= 1:
                    break
        except simpy.Interrupt:
            return None
        finally:
            self._due_since = math.inf
        return None

    def _average(self) -> Process:
        """Average with everybody at this step; None if it failed."""
        self._met_nobody = False
        if self.view.averaging <= 1:
            return self._own_average()
        self._due_view = self.view
        began = self._env.now
        group = yield from self._await_group(began)
        if group is None:
            return None
        self._absences.round_ended(self._due_view.here - group.peers)
        self._follow_gathering(max(0.0, self._env.now - began - group.seconds))
        self._deadline.succeeded(group.seconds)
        self._missed.round_ended()
        self._line.passed(group.traffic)
        if usual_s := self._course.allowances.usual_s:
            self.missing_auxiliaries = missing_auxiliaries(group.lines, group.traffic.promised_s, usual_s)
        short = round(sum(group.weights.values())) < self.world.target
        self._round_ended(group, short)
        return None if short else group

    def _own_average(self) -> MetGroup | None:
        samples = self._due_samples
        if not may_average_alone(self.view, samples, self.world.target, self._keeper_may_be_late):
            return None
        return MetGroup.alone(self.name, samples)

    def _await_group(self, began: float) -> Process:
        """Wait for a round to end; None if this peer has given it up."""
        failed_rounds = 0
        seeker = self._seeker or self._seek()
        self.world.groups.begin(seeker, float(self._due_samples))
        while True:
            self.world.groups.demand(seeker, self._demands())
            if not (seeker.done.triggered or seeker.is_running):
                yield seeker.done | self._env.timeout(max(0.05, self._look_at - self._env.now)) | self.left
            elif not seeker.done.triggered:
                yield seeker.done
            if seeker.done.triggered:
                result: Any = seeker.done.value
                self._seeker = None
                if isinstance(result, MetGroup):
                    return result
                failed_rounds += 1
                self._round_failed(result)
                seeker = self._seek()
                self.world.groups.begin(seeker, float(self._due_samples))
            self._look_if_due()
            late_s = self._env.now - began - self._averaging.averaging_timeout_s
            left_behind = failed_rounds > 0 and self._progress.step > self.step
            if not seeker.is_running and (late_s > 0 or left_behind or not self._is_full or self.is_leaving):
                self.world.groups.give_up(seeker)
                self._seeker = None
                self._met_nobody = not failed_rounds
                self._follow_gathering(None)
                self._tell("found no group", self.step)
                return None

    def _round_failed(self, result: FailedRound) -> None:
        own = {self.name}
        self._missed.round_ended(absent_of(result.missed, result.others | own))
        if not self._missed.current():
            self._deadline.failed()
        self._line.failed()
        self._tell("round failed", self.step, ",".join(sorted(result.missed)))

    def _follow_gathering(self, waited_s: float | None) -> None:
        if waited_s is None:
            self._window.failed()
        else:
            self._window.succeeded(waited_s)
        if self.device.is_reachable:
            self._window_s = self._window.seconds

    def _round_ended(self, group: MetGroup, short: bool) -> None:
        if not short and self.role == "keeper":
            age_s = self._course.age_s(self.step, self._env.now)
            self._credits.take(group.weights, age_s, self._course.allowances.of)
        attested = {name: AttestedWeight(weight, weight, weight, weight) for name, weight in group.weights.items()}
        self._course.round_ended(self.step, group.weights, attested, short)

    # the tracker

    def _look_if_due(self) -> None:
        if self._env.now >= self._look_at:
            self._look()

    def _look(self) -> None:
        """Take in all records, and this peer's own as it is now."""
        now, world = self._env.now, self.world
        records = [peer for peer in world.board.seen() if peer.peer_id != self.name]
        if self.is_training:
            records.append(self._known())
        self.view = view = self._course.look(records, world.target, now)
        if view.keepers:
            self._keeper_seen_at = now
        step = max(view.step, self.step) if view.trainers == 0 else view.step
        usual_s = view.usual_remaining_s(world.target)
        self._progress = Progress(step, view.samples, now + usual_s)
        remaining_s = 0.0 if view.step > self.step else usual_s
        longest_s = self._longest_look_s if view.keepers else min(self._longest_look_s, GREETING_PERIOD_S / 2)
        self._look_at = now + look_interval_s(view.live, remaining_s, self._averaging.progress_refresh_s, longest_s)

    @property
    def _remaining_s(self) -> float:
        if self.view.step != self.step:
            return math.inf
        missing = max(0, self.world.target - self._progress.samples)
        return self.view.remaining_s(self.name, missing, self._env.now, self._longest_look_s)

    def _known(self) -> KnownPeer:
        record = PeerRecord.model_construct(
            step=self.step,
            samples=claim_of(self._due_samples, self.world.target),
            rate=self._rate,
            time=self._env.now,
            training=self.is_training,
            client_mode=not self.device.is_reachable,
            era=self.era,
            sketch=(),
            course=self._keepers_course() if self.role == "keeper" else None,
        )
        return KnownPeer(self.name, self.member, self.name, self.role, record)

    def _keepers_course(self) -> Course:
        allowances = self._course.allowances
        return Course.model_construct(
            age_s=self._course.age_s(self.step, self._env.now),
            usual_s=self._credits.usual_s,
            credits=self._credits.credits_above(allowances.share * allowances.target / GROWTH),
            steering=Steering(),
        )

    def _report(self) -> None:
        """Publish what changed at once, and mere further samples when the next report is due."""
        published_at, stage, samples = self._published
        if stage != self._stage or self._due_samples < samples:
            self._publish()
        elif not self._is_publishing:
            due_at = published_at + report_interval_s(self.view.live, self._remaining_s, self._longest_look_s)
            if due_at <= self._env.now:
                self._publish()
            else:
                self._is_publishing = True
                self._env.process(self._publish_later(due_at - self._env.now))

    @property
    def _stage(self) -> object:
        return self.step, self.era, self.is_training

    def _publish_later(self, seconds: float) -> Process:
        yield self._env.timeout(seconds)
        self._is_publishing = False
        if self.world.is_here(self):
            self._publish()

    def _publish(self) -> None:
        self._published = self._env.now, self._stage, self._due_samples
        self.world.board.publish(self._known())

    def heartbeat(self) -> Process:
        """Publish the record now and then, whatever happens, as long as this peer is there."""
        while self.world.is_here(self):
            if self._env.now - self._published[0] >= self._averaging.statistics_expiration_s / 4:
                self._publish()
            yield self._env.timeout(self._averaging.statistics_expiration_s / 8)

    def _tell(self, what: str, *facts: Any) -> None:
        self.world.tell(self.name, what, *facts)
