"""One peer in virtual time: a simulated `peer.swarm.swarm` and `peer.training.trainer`.

The functions of real peers choose the moves, which are executed in virtual time. States are not
computed but represented by numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import simpy

from peer.averaging.meetings import MOST_GRACE_S
from peer.network.least_rate import PATIENCE_S
from peer.node.average_history import Average, AverageHistory, Lack
from peer.node.donations import AT_ONCE, FOLLOWERS_AT_ONCE, Donations
from peer.rehearsal.groups import MetGroup
from peer.rehearsal.rounds import VirtualRounds
from peer.rehearsal.scenario import KEEPER, Rehearsed
from peer.rehearsal.tracker import Eyes, VirtualTracker
from peer.rehearsal.troubles import Process
from peer.rehearsal.world import World
from peer.reporting.messages import LostCause
from peer.swarm.decision import DownloadPause, Move, Situation, decide, longest_hold_s, samples_at_once
from peer.swarm.fingerprint import Sketch, drifted
from peer.swarm.shared_state import CONFIRMATION_WAIT_S
from peer.swarm.swarm import LOOK_AGAIN_S, MOST_SILENT_LOOKS
from peer.swarm.view import MEETING_S, MOST_BATCHES
from peer.training.bootstrap import ASK_EVERY, RETRY_S

STATE_BYTES, CHECKPOINT_BYTES = 8, 12  # bytes per parameter value
LOOK_S = 10.0  # interval of checks during a download, below a donor's timeout for a slot
MOMENT_S = 0.05  # polling interval of a real peer
SURVIVORS_WAIT_S, SURVIVORS_TOLD_S, SURVIVORS_STATE_S = 10.0, 60.0, 60.0  # same as in `coordinator.keeper.recovery`
SLOW_POLL_S = 10.0  # polling interval of a peer on standby
POLL_S = 0.5  # replaces real peers' shorter polling intervals while nothing changes


@dataclass
class Work:
    """One device's samples and time, summed over all visits."""

    computed: int = 0
    counted: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    present_s: float = 0.0  # time during which the device had the run's state
    downloads: int = 0
    steps: int = 0  # steps with this device's samples


class RehearsedPeer:
    """A peer during one visit of a device; the keeper and auxiliary peers do not compute."""

    def __init__(self, world: World, device: Rehearsed, role: str, work: Work, eyes: Eyes) -> None:
        self.world, self.device, self.role, self.work = world, device, role, work
        self.name, self.member = device.name, device.member or device.name
        env, averaging = world.env, world.config.averaging
        self._env, self._averaging = env, averaging
        self.step, self.era, self.state = 0, 0, 0  # the state is represented by a number
        self.voters = frozenset[str]()  # the devices that took this step together; empty: unknown
        self.history = AverageHistory()
        self._resumes = False
        self._silent_looks = 0
        self.samples = 0  # samples accumulated towards a step, without those in a background round
        self.held: int | None = None  # samples in a background round; None: no round
        self.is_training = role == "keeper"
        self.is_leaving = False
        self.left = env.event()
        self.has_state = role == "keeper"
        self.began_at: float | None = None  # time at which this peer first had the run's state
        self._overlapping: simpy.Process | None = None
        self.tracker = VirtualTracker(world, self, eyes)
        self.rounds = VirtualRounds(world, self, device, self.tracker, self.left)
        self._held_for = -1, 0.0
        self._held_after = self._unfollowed = -1
        self._has_late_samples = False
        self._changed_at = env.now
        self._pause = DownloadPause(lambda: env.now)
        self.followers = Donations(lambda: env.now, FOLLOWERS_AT_ONCE)
        self.takers = Donations(lambda: env.now, AT_ONCE)

    # lifecycle

    def run(self) -> Process:
        """Run until asked to leave, or until interrupted by a crash of the device."""
        try:
            if self.role != "keeper":
                yield self._env.timeout(self.world.scenario.start_s)
                yield from self._take_first_state()
            elif self._resumes:
                yield from self._resume_run()
            self.began_at = self._env.now
            if not self.is_leaving:
                self.has_state = True
                self._tell("joined", self.step)
                yield from (self._train() if self.role == "trainer" else self._assist())
            if self._overlapping is not None:  # other peers still receive from this peer
                yield self._overlapping
                yield from self._conclude()
            self.is_training = False
            self.tracker.publish()
        except simpy.Interrupt:
            pass
        finally:
            self.rounds.cancel()
            if self._overlapping is not None and self._overlapping.is_alive:
                self._overlapping.interrupt()
            self.world.gone(self)
            self._lose(LostCause.LEFT, self._drop())
            self.stop()

    def stop(self) -> None:
        """Add the seconds since this peer first had the run's state to its device's total."""
        if self.began_at is not None:
            self.work.present_s += self._env.now - self.began_at
            self.began_at = None

    def resume(self, era: int) -> None:
        """Restart a killed keeper from its newest checkpoint."""
        self.era, self.voters, self._resumes = era, frozenset(), True
        if self.world.checkpoint is not None:
            _, self.step, self.state = self.world.checkpoint
        self._begin_step()

    def _resume_run(self) -> Process:
        """Look for peers with a newer state, or undo the lost steps (`Recovery.resume_ledger`)."""
        resumed_at, may_undo, are_found = self.step, self.world.recorded > self.step, False
        until = self._env.now
        if self.world.recorded or resumed_at:
            until += SURVIVORS_TOLD_S if may_undo else SURVIVORS_WAIT_S
        while self.step == resumed_at and self._env.now < until:
            is_behind = self.tracker.progress.step > self.step
            if is_behind and not are_found:
                are_found, until = True, self._env.now + SURVIVORS_STATE_S
            if is_behind or not may_undo:
                yield from self._advance()
            else:
                self.tracker.look_if_due()
            yield self._env.timeout(POLL_S)
        if self.world.recorded > self.step:
            self.era, self.voters = self.era + 1, frozenset()
            self.world.undo(self.step, self.era)
            self._begin_step()

    def leave(self) -> None:
        """Ask this peer to leave at the next opportunity."""
        self.is_leaving = True
        if not self.left.triggered:
            self.left.succeed()

    def _train(self) -> Process:
        assert self.device.samples_per_second is not None
        while not self.is_leaving:
            if not self._wants_samples:
                yield from self._advance()
                continue
            usual_s = self.tracker.usual_s
            rate = self.device.samples_per_second if self.is_training else 0.0
            samples = samples_at_once(self.world.config.data.microbatch_size, rate, usual_s)
            yield self._env.timeout(samples / self.device.samples_per_second)
            self.work.computed += samples
            self.samples += samples
            self.is_training = True
            self.tracker.report()
            yield from self._advance()

    def _assist(self) -> Process:
        self.is_training = True
        self.tracker.report()
        while not self.is_leaving:
            yield from self._advance()
            wait_s = self.tracker.look_at - self._env.now
            if wait_s > 0 and not self.rounds.has_begun:
                reported = self.world.board.reported if self.role == "keeper" else self._env.event()
                yield self._env.timeout(wait_s) | self.left | self.rounds.begins | reported
                if reported.triggered:
                    self.tracker.look()

    # moves in the swarm

    def _advance(self) -> Process:
        """Decide on the next move and carry it out, as `Swarm.advance` does in a real peer."""
        self.tracker.look_if_due()
        if self._overlapping is not None:
            yield from self._conclude()
            return
        if decide(self._situation())[0] is Move.HOLD:
            yield from self._hold()
        move, _ = decide(self._situation())
        if move is Move.STAND_BY:
            yield from self._stand_by()
        elif move is Move.WAIT:
            yield from self._wait(self.world.rng.uniform(*LOOK_AGAIN_S))
        elif move is Move.FOLLOW:
            yield from self._follow()
        elif move is Move.DOWNLOAD:
            yield from self._catch_up()
        else:
            yield from self._fill_or_average(move)

    def _fill_or_average(self, move: Move) -> Process:
        self.rounds.prepare()
        if move is Move.ACCUMULATE:
            if self._has_enough and self.role == "trainer":
                yield from self._wait(POLL_S)
        elif move is Move.AVERAGE_BESIDE:
            self.held, self.samples = self.samples, 0
            self._overlapping = self._env.process(self.world.troubles.held(self.name, self._average_beside()))
        else:
            group = yield from self.rounds.average_when_due()
            if group is not None:
                self._take_step(group)

    def _situation(self) -> Situation:
        may_follow = self.role != "keeper" and self._unfollowed != self.step
        microbatch_s = self.world.config.data.microbatch_size / self.rate if self.rate else 0.0
        return Situation(
            step=self.step,
            swarm_step=self.tracker.progress.step,
            is_too_slow=self.rounds.line_is_too_slow,
            is_undone=self.tracker.is_undone,
            has_drifted=self.tracker.has_drifted,
            can_follow=may_follow and not drifted(self.tracker.sketch, self.tracker.course.sketch_at(self.step)),
            may_download=self._pause.is_over or self.role == "keeper",
            is_leaving=self.is_leaving,
            is_full=self.rounds.is_full,
            remaining_s=self.tracker.remaining_s(microbatch_s),
            microbatch_s=microbatch_s,
            may_hold=self._held_after != self.step and self.rate > 0,
            may_overlap=self._averaging.delay and self.role != "keeper",
            others_arrive=self.tracker.view.arriving > 0
            and not self.rounds.has_begun
            and self._env.now - self._changed_at < MOST_GRACE_S,
        )

    @property
    def is_client(self) -> bool:
        """Whether this peer is in client mode, in which no other peer can connect to it."""
        return not self.device.is_reachable

    @property
    def rate(self) -> float:
        return (self.device.samples_per_second or 0.0) if self.is_training else 0.0

    @property
    def due_samples(self) -> int:
        return self.samples if self.held is None else self.held

    @property
    def _wants_samples(self) -> bool:
        tracker = self.tracker
        has_other = tracker.progress.step > self.step or tracker.has_drifted or tracker.is_undone
        return not ((self._overlapping is None and has_other) or self._has_enough or self.rounds.line_is_too_slow)

    @property
    def _has_enough(self) -> bool:
        return self.samples + (self.held or 0) >= MOST_BATCHES * self.world.target

    def _stand_by(self) -> Process:
        if self.is_training or self.samples:
            self._lose(LostCause.SLOW_LINE, self._drop())
            self.is_training = False
            self.tracker.report()
            self._tell("stands by", self.step)
        self.rounds.stand_by()
        yield from self._wait(SLOW_POLL_S)

    def _wait(self, seconds: float) -> Process:
        yield self._env.timeout(seconds) | self.left

    def _hold(self) -> Process:
        began, step = self._env.now, self.step
        held_before_s = self._held_for[1] if self._held_for[0] == step else 0.0
        longest_s = longest_hold_s(
            self.tracker.usual_s,
            self._averaging.progress_refresh_s,
            self.tracker.missing_samples,
            self.tracker.view.faster_rate(self.name),
        )
        self.rounds.prepare()
        self.tracker.look()
        until = began + longest_s - held_before_s
        while decide(self._situation())[0] is Move.HOLD:
            left_s = until - self._env.now
            if left_s <= MOMENT_S or self.is_leaving:
                self._held_after = step
                break
            yield self._env.timeout(min(left_s, max(MOMENT_S, self.tracker.look_at - self._env.now))) | (
                self.left | self.rounds.begins
            )
            self.tracker.look_if_due()
        self._held_for = step, held_before_s + self._env.now - began

    def _conclude(self) -> Process:
        """Take the step of a completed background round; wait for it if this peer is ahead."""
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

    def _average_beside(self) -> Process:
        try:
            return (yield from self.rounds.average_when_due())
        except simpy.Interrupt:  # the device has crashed
            return None

    @property
    def _is_ahead(self) -> bool:
        all_rates = self.tracker.view.rate
        share = min(1.0, self.rate / all_rates) if all_rates > 0 else 1.0
        return self.samples >= share * self.world.target or self._has_enough

    def _take_back(self) -> None:
        self.samples, self.held = self.samples + (self.held or 0), None
        self.tracker.report()

    def _take_step(self, group: MetGroup) -> None:
        samples = self.due_samples
        self.step, self.voters = self.step + 1, group.peers
        self.state = self.world.state_after(self.state, group.number)
        if self.held is None:
            self.samples = 0
        self.held, self._has_late_samples = None, False
        self._pause.end()
        if self.role == "trainer":
            self.work.counted += samples
            self.work.steps += 1
        if self.role == "keeper":
            self.history.keep(self.era, self.step, cast(Average, group))
        self.world.step_taken(self, group, samples)
        self._begin_step()

    def _begin_step(self) -> None:
        self._changed_at = self._env.now
        self.rounds.begin_step()
        self.tracker.begin_step()

    def _lose(self, cause: LostCause, samples: int) -> None:
        if samples and self.role == "trainer":
            self.work.lost[cause.value] += samples
            self._tell("lost", samples, cause.value)

    def _drop(self) -> int:
        lost, self.samples, self.held = self.samples + (self.held or 0), 0, None
        return lost

    def _why_lost(self) -> LostCause:
        if self.tracker.is_undone:
            return LostCause.UNDONE
        if self.tracker.progress.step <= self.step:
            return LostCause.OUT_OF_SYNC
        return LostCause.AVERAGING if self.rounds.attempts else LostCause.LATE

    # other peers' states

    def _follow(self) -> Process:
        """Take the first missed step with the keeper's average; late samples may be lost."""
        keeps = (
            self.tracker.progress.step == self.step + 1
            and self._averaging.delay
            and not self.rounds.attempts
            and not self._has_late_samples
        )
        reason, donor = self._why_lost(), self.world.keeper
        if donor is not None and not self.world.can_reach(donor.name, self.name):
            donor = None
        average = Lack.SILENT if donor is None else donor.history.after(self.era, self.step)
        is_whole = not (donor is None or isinstance(average, Lack)) and (
            yield from self._download(donor, donor.followers, self.world.missed_bytes)
        )
        self._silent_looks = self._silent_looks + 1 if donor is None else 0
        if isinstance(average, Lack) or not is_whole:
            if average is Lack.GONE or self._silent_looks >= MOST_SILENT_LOOKS:
                self._silent_looks, self._unfollowed = 0, self.step
            else:
                yield from self._wait(self.world.rng.uniform(*LOOK_AGAIN_S))
            return
        if not keeps:
            self._lose(reason, self._drop())
        missed = cast(MetGroup, average)
        self.step, self.voters = self.step + 1, missed.peers
        self.state = self.world.state_after(self.state, missed.number)
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
        """Load the newest checkpoint or a donor's state; the counterpart of `StateTaking.run`."""
        attempts = 0
        while not self.is_leaving:
            if attempts % ASK_EVERY == 0 and (yield from self._take_checkpoint()):
                break
            if (yield from self._take_state()):
                break
            attempts += 1
            self.tracker.look()
            yield from self._wait(self.world.rng.uniform(0.5, 1.5) * RETRY_S)
        self.tracker.look()
        self._begin_step()

    def _take_checkpoint(self) -> Process:
        """Download the newest checkpoint from the coordinator; return whether that succeeded."""
        checkpoint = self.world.usable_checkpoint
        if checkpoint is None or not self.world.can_reach(KEEPER, self.name):
            return False
        came = yield from self._receive(self.world.scenario.parameters * CHECKPOINT_BYTES, KEEPER, lambda: True)
        if not came or self.world.usable_checkpoint is None:
            return False
        self.era, self.step, self.state = checkpoint
        self.voters = frozenset()
        self._tell("took the checkpoint", self.step)
        return True

    def _take_state(self) -> Process:
        """Download the first recent and trusted state of a donor; return whether one was found."""
        course, is_keeper = self.tracker.course, self.role == "keeper"
        least = 0 if self.tracker.is_undone else self.step + (self.tracker.progress.step > self.step)
        least_era = self.era if is_keeper else course.era
        if is_keeper:
            yield from self._meet_all()
        for donor in self.world.donors_for(self):
            step, era, state, sketch = donor.step, donor.era, donor.state, donor.tracker.sketch
            voters = donor.voters
            if not (
                yield from self._download(donor, donor.takers, round(STATE_BYTES * self.world.scenario.parameters))
            ):
                continue
            if step < least or era < least_era or (yield from self._doubts(donor, step, sketch)):
                continue
            self.step, self.state, self.era = step, state, self.era if is_keeper else era
            self.voters = frozenset() if is_keeper else voters
            self.history.begin(self.era, self.step)
            self.work.downloads += 1
            self._tell("took the state", step)
            return True
        return False

    def _meet_all(self) -> Process:
        """On the keeper, wait up to a few seconds until all peers have found the keeper."""
        deadline = self._env.now + MEETING_S + CONFIRMATION_WAIT_S
        while not self.tracker.course.has_met_all(self._env.now) and self._env.now < deadline:
            yield from self._wait(POLL_S)
            self.tracker.look_if_due()

    def _doubts(self, donor: RehearsedPeer, step: int, sketch: Sketch) -> Process:
        """Return whether to reject a donor's state; a keeper first waits for members' sketches."""
        course, is_keeper = self.tracker.course, self.role == "keeper"
        deadline = self._env.now + CONFIRMATION_WAIT_S
        while is_keeper and sketch and not course.sketch_at(step) and self._env.now < deadline:
            yield from self._wait(POLL_S)
            self.tracker.look_if_due()
        known = course.sketch_at(step)
        if drifted(sketch, known):
            course.judge_donor(donor.name, step, sketch)
        return drifted(sketch, known) or (is_keeper and bool(sketch) and not known)

    def _download(self, donor: RehearsedPeer, places: Donations, size_bytes: int) -> Process:
        donation = places.begin(self.member, self.name)
        if donation is None:
            self.world.turned_away(donor)
            return False
        came = False
        try:
            came = yield from self._receive(
                size_bytes,
                donor.name,
                lambda: self.world.is_here(donor) and places.goes_on(donation),
            )
        finally:
            places.end(donation, is_whole=came)
        return came

    def _receive(self, size: int, sender: str, goes_on: Callable[[], bool]) -> Process:
        """Receive a number of bytes; return whether all arrived."""
        done = self._env.event()
        transfer = self.world.lines.send({(sender, "up"): size, (self.name, "down"): size}, done.succeed)
        silent_at = self._env.now + PATIENCE_S
        try:
            while not done.triggered and not self.is_leaving and goes_on():
                if self.world.can_reach(sender, self.name):
                    silent_at = self._env.now + PATIENCE_S
                elif self._env.now >= silent_at or self.world.troubles.are_apart(sender, self.name):
                    break
                yield done | self.left | self._env.timeout(LOOK_S)
        finally:
            self.world.lines.stop(transfer)
        return done.triggered

    def _tell(self, what: str, *facts: Any) -> None:
        self.world.tell(self.name, what, *facts)
