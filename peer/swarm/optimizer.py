"""hivemind's optimizer with three changes, for members only.

A step begins on samples really reported, a failed averaging never becomes a step on local gradients, and a peer that
fell behind takes the averages that it missed, or the state, from a trusted donor (the keeper). `peer.swarm.swarm`
drives it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from functools import partial
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import StepControl
from hivemind.p2p import PeerID

from auth.swarm.access import SwarmAccess
from auth.swarm.authorizer import RecordKey
from peer.averaging.averager import GROUP_POLL_S, AveragedGroup, SwarmGradientAverager
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.matchmaking import (
    LEAST_WINDOW_S,
    Gathering,
    keeperless_group_size,
    request_timeout,
    required_group_size,
)
from peer.averaging.power_sgd import PowerSGDAverager
from peer.averaging.rounds import RoundDeadline, forget_frames
from peer.config.run import RunConfig
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.network.traffic import Traffic
from peer.reduction.compression import compression_of
from peer.reduction.guard import ReductionGuard
from peer.reporting.metrics import RoundCounts
from peer.reporting.suspicions import Suspicions
from peer.swarm.decision import Situation
from peer.swarm.fingerprint import Sketch, drifted, sketch_of
from peer.swarm.state import SwarmStateAverager, optimizer_tensors
from peer.swarm.tracker import StepTracker
from peer.swarm.view import MEETING_S, STEPS_AHEAD

logger = logging.getLogger(__name__)
RETRY_S = 0.1
WAITED_SHARE = 0.25  # of a usual step
CONFIRMATION_WAIT_S = 3.0
SLOWEST_REFRESH = 20  # times as slow as the fastest; a keeper that is gone must be missed soon enough all the same
NEVER = 2**62  # parameters are identical on all peers, so hivemind's state averaging has nothing to do


class SwarmOptimizer(hivemind.Optimizer):
    """hivemind's optimizer for members only; see the module's docstring."""

    scheduled_grads: StepControl | None  # a round that was begun ahead of time

    def __init__(
        self,
        *,
        access: SwarmAccess,
        key: RecordKey,
        role: str,
        config: RunConfig,
        model: torch.nn.Module,
        dht: hivemind.DHT,
        keeper_ids: Sequence[PeerID],
        traffic: Traffic,
        line: LineEstimate,
        client_mode: bool,
        suspicions: Suspicions,
    ) -> None:
        self._suspicions = suspicions
        self._traffic, self.line = traffic, line
        self._access, self._key, self._role, self._keeper_ids = access, key, role, keeper_ids
        self._config = config
        averaging = config.averaging
        self._window = RoundDeadline(averaging.matchmaking_time_s, LEAST_WINDOW_S)
        self._guard = ReductionGuard(averaging=averaging)
        super().__init__(
            dht=dht,
            run_id=config.run.name,
            target_batch_size=averaging.target_batch_size,
            params=parameter_groups(model, config),
            optimizer=partial(build_optimizer, config),
            scheduler=partial(build_scheduler, config),
            matchmaking_time=averaging.matchmaking_time_s,
            averaging_timeout=averaging.averaging_timeout_s,
            next_chunk_timeout=averaging.averaging_timeout_s / 3,  # a busy peer is not a lost one
            offload_optimizer=False,
            delay_state_averaging=False,
            average_state_every=NEVER,
            shutdown_timeout=2.0,
            client_mode=client_mode,
            grad_compression=compression_of(averaging.compression),
            reuse_grad_buffers=True,
            tracker_opts={
                "min_refresh_period": averaging.progress_refresh_s,
                "max_refresh_period": min(
                    SLOWEST_REFRESH * averaging.progress_refresh_s, averaging.statistics_expiration_s / SLOWEST_REFRESH
                ),
                "metadata_expiration": averaging.statistics_expiration_s,
            },
            averager_opts={"request_timeout": request_timeout(averaging.matchmaking_time_s)},
        )
        self.attempts = 0  # failed averagings of the current step
        self.rounds = RoundCounts(time.monotonic)
        self._due_view = self.tracker.view  # in which the batch was full: who began just before is only in the next
        self._step_began_s = time.monotonic()
        self._due_since = math.inf  # when this peer began to average, while it does
        self._has_late_samples = False  # among those that are accumulated: one step late, and no more
        self.interrupted = threading.Event()  # told to leave: wait for nobody any more

    def _make_progress_tracker(self, target_batch_size: int, **kwargs: Any) -> StepTracker:
        return StepTracker(
            self.dht,
            access=self._access,
            key=self._key,
            role=self._role,
            keeper_ids=self._keeper_ids,
            newcomer_share=self._config.membership.newcomer_share,
            caps=self._guard.caps,
            suspicions=self._suspicions,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            **kwargs,
        )

    def _make_state_averager(self, **kwargs: Any) -> SwarmStateAverager:
        return SwarmStateAverager(
            dht=self.dht,
            access=self._access,
            traffic=self._traffic,
            prefix=f"{self.run_id}_state_averager",
            min_matchmaking_time=self.matchmaking_time,
            allreduce_timeout=self.allreduce_timeout,
            shutdown_timeout=self.shutdown_timeout,
            next_chunk_timeout=self.next_chunk_timeout,
            client_mode=self.client_mode,
            start=True,
            **kwargs,
        )

    def _make_gradient_averager(self, factory: Any, reuse_grad_buffers: bool, **kwargs: Any) -> SwarmGradientAverager:
        assert factory is None
        assert reuse_grad_buffers
        rank = self._config.averaging.powersgd_rank
        kind = partial(PowerSGDAverager, rank=rank) if rank else SwarmGradientAverager
        return kind(
            dht=self.dht,
            access=self._access,
            traffic=self._traffic,
            prefix=f"{self.run_id}_grad_averager",
            bandwidth=self.line.rate,
            parameters=self.state_averager.main_parameters,
            gathering=Gathering(self.matchmaking_time),
            guard=self._guard,
            allreduce_timeout=self.allreduce_timeout,
            shutdown_timeout=self.shutdown_timeout,
            next_chunk_timeout=self.next_chunk_timeout,
            client_mode=self.client_mode,
            start=True,
            warn=False,
            **kwargs,
        )

    def add(self, samples: int) -> None:
        """Count samples whose gradients were added to `.grad` and tell the swarm."""
        self.grad_averager.accumulate_grads_(samples)
        if self.grad_averager.holds:  # these are for the step after the one that is being averaged
            self.tracker.performance_ema.update(task_size=samples)
        else:
            self.tracker.report_local_progress(self.local_epoch, self.grad_averager.due_samples)

    def prepare_averaging(self) -> None:
        """Look for a group ahead of time when the batch will soon be full."""
        self._require_group()
        self._maybe_schedule_gradient_averaging()

    def _require_group(self) -> None:
        self.tracker.heed(self.grad_averager.findings.take())
        view, gathering = self.tracker.view, self.grad_averager.gathering
        gathering.position = self.state_averager.era, self.local_epoch
        has_waited = time.monotonic() - self._due_since > self._patience_s
        gathering.required = required_group_size(view.averaging, self.attempts, has_waited)
        has_keeper = view.keepers > 0 or self.tracker.keeper_may_be_late
        gathering.keeperless = keeperless_group_size(view.live, has_keeper)
        keeper_known = view.keepers > 0 or not self.tracker.keeper_may_be_late
        known = view is not self._due_view and view.step == self.local_epoch and keeper_known
        gathering.expected = view.averaging + view.arriving if known else 0

    @property
    def _patience_s(self) -> float:
        """The seconds that a full batch waits for everybody: a microbatch may take minutes, and must not stop all."""
        usual_s = self.tracker.course.allowances.usual_s
        return max(self._config.averaging.averaging_timeout_s / 2, usual_s * WAITED_SHARE)

    def declare_line(self) -> None:
        """Tell the next groups how fast the line is by now."""
        self.grad_averager.bandwidth = self.line.rate

    def _follow_gathering(self, waited_s: float | None) -> None:
        """Adapt the time for finding the next group to the wait for this one; None: no group was found."""
        if waited_s is None:
            self._window.failed()
        else:
            self._window.succeeded(waited_s)
        if not self.client_mode:  # leaders turn away who would wait less long than they, and a client only follows
            self.matchmaking_time = self.grad_averager.gathering.window_s = self._window.seconds

    def situation(self, may_follow: bool, may_download: bool) -> Situation:
        """Return this peer's situation; a peer whose state is not the swarm's cannot follow the swarm."""
        tracker = self.tracker
        return Situation(
            step=self.local_epoch,
            swarm_step=tracker.swarm_step,
            is_undone=tracker.is_undone,
            has_drifted=tracker.has_drifted,
            can_follow=may_follow and not drifted(tracker.sketch, tracker.course.sketch_at(self.local_epoch)),
            may_download=may_download,
            is_leaving=self.interrupted.is_set(),
            is_held=self.is_held,
            is_full=tracker.ready_to_update_epoch,
            may_overlap=self.may_overlap,
            others_arrive=self.others_arrive,
        )

    @property
    def is_due(self) -> bool:
        """Whether the global batch is full, and this peer is not about to leave."""
        return self.tracker.ready_to_update_epoch and not self.interrupted.is_set() and not self.is_held

    @property
    def is_held(self) -> bool:
        """Whether the operator wants no further step, for now or for good."""
        steering = self.tracker.course.steering
        return steering.paused or steering.has_ended(self.local_epoch)

    @property
    def may_overlap(self) -> bool:
        """Whether this peer may train on while the next step is averaged: no sample passes a phase's boundary."""
        phases = [len(self._config.at_step(step).phases) for step in (self.local_epoch, self.local_epoch + 1)]
        return self._config.averaging.delay and self._role == "trainer" and phases[0] == phases[1]

    @property
    def others_arrive(self) -> bool:
        """Whether to wait for peers that have yet to take the step that this one has taken; at most a matchmaking time.

        A peer that begins with samples accumulated beside a round may fill the next batch before they are there.
        """
        patience_s = self._config.averaging.matchmaking_time_s
        return self.tracker.view.arriving > 0 and time.monotonic() - self._step_began_s < patience_s

    @property
    def is_ahead(self) -> bool:
        """Whether this peer has its share, by its speed, of the batch after the one that is being averaged.

        Such a peer waits, so that the next batch is no larger than the run wants it, however long the round takes.
        """
        own, all_rates = float(self.tracker.performance_ema.samples_per_second), self.tracker.view.rate
        share = min(1.0, own / all_rates) if all_rates > 0 else 1.0
        return bool(self.grad_averager.local_samples_accumulated >= share * self.target_batch_size)

    def average_when_due(self) -> AveragedGroup | None:
        """Average, and try again after each failure; None if the batch is no longer full, or this peer is to leave.

        Further samples would help nobody while it is full, so the next attempt comes at once.
        """
        self._due_since = time.monotonic()
        try:
            while self.is_due:
                group = self.average()
                self.rounds.end(succeeded=group is not None)
                if group is not None:
                    return group
                self.attempts += 1
                time.sleep(RETRY_S)
                if self.tracker.view.averaging <= 1:  # nobody else is at this step: the others may yet come to it
                    break
            return None
        finally:
            self._due_since = math.inf

    def average(self) -> AveragedGroup | None:
        """Average gradients with everybody at this step; None if it failed (then nothing has changed).

        Alone in the swarm the peer's own mean gradient is the average.
        """
        if self.tracker.view.averaging <= 1:
            samples = self.grad_averager.due_samples
            if samples < self.target_batch_size:  # the others have just moved on, or this is the keeper
                return None
            if self.tracker.keeper_may_be_late:  # on a busy machine; a step without it would leave it behind
                return None
            if self.tracker.view.live > 1:  # others are at another step: this peer alone is not most of them
                return None
            self._cancel_scheduled()
            self.grad_averager.load_accumulators_into_averager_()
            return AveragedGroup(size=1, samples=samples, averaged_bytes=0)
        control, self.scheduled_grads = self.scheduled_grads, None
        if control is not None and (control.triggered or control.done()):
            control = None
        self.rounds.begin()
        began, failed_before = time.monotonic(), self.grad_averager.failed_rounds
        self._due_view = self.tracker.view
        self._require_group()
        try:
            control = control or self.grad_averager.schedule_step(timeout=self.averaging_timeout)
            weight = self.grad_averager.due_samples
            self.grad_averager.step(weight=weight, control=control, reset_accumulators=False, wait=False)
            group = self._await_group(control)
        except Exception as error:  # noqa: BLE001 - a fault boundary: the caller tries again, or takes the keeper's state
            logger.warning("averaging for step %d failed: %r", self.local_epoch + 1, error)
            self._give_up(control)
            forget_frames(error)  # these hold `control`, which holds the error
            return None
        finally:
            self.tracker.is_reducing(False)
            self.tracker.heed(self.grad_averager.findings.take())
        if self.grad_averager.failed_rounds == failed_before:
            self._follow_gathering(max(0.0, time.monotonic() - began - group.seconds))
        if group.traffic is not None:
            self.line.passed(group.traffic)
            self.declare_line()
        short = group.samples < self.target_batch_size
        self.tracker.round_ended(group.weights, short=short)
        if short:  # a peer was lost on the way, or claimed what it has not; the others make the batch up
            logger.warning("only %d samples were averaged for step %d", group.samples, self.local_epoch + 1)
            return None
        return group

    def _give_up(self, control: StepControl | None) -> None:
        if control is not None and not control.began_allreduce:
            self._follow_gathering(None)
        if control is not None and not control.done():
            control.cancel()

    def _await_group(self, control: StepControl) -> AveragedGroup:
        """Wait for the round's result. Raises `TimeoutError` if the batch is no longer full because a peer has gone.

        It is raised at the deadline, too, and if the round has failed here and not for the others, who have taken the
        step and will not average again.
        """
        deadline = time.monotonic() + self.averaging_timeout
        failed_before = self.grad_averager.failed_rounds
        while True:
            try:
                return control.result(GROUP_POLL_S)
            except futures.TimeoutError:
                self.tracker.is_reducing(control.began_allreduce)
                wanted = self.tracker.ready_to_update_epoch and not self.interrupted.is_set()
                left_behind = (
                    self.grad_averager.failed_rounds > failed_before and self.tracker.swarm_step > self.local_epoch
                )
                if left_behind or time.monotonic() > deadline or not (control.began_allreduce or wanted):
                    raise
                self._require_group()

    def _cancel_scheduled(self) -> None:
        if self.scheduled_grads is not None and not self.scheduled_grads.done():
            self.scheduled_grads.cancel()
        self.scheduled_grads = None

    def take_step(self) -> None:
        """Apply the averaged gradient in one optimizer step, and begin the next global step.

        The next step begins with the samples that were accumulated while this one was averaged in the background.
        """
        with self._changing_state(), self.grad_averager.making_room():
            self._follow_steering()  # the beacon may have come since this step began
            self._step_on_averages()
        self.attempts, self._has_late_samples = 0, False

    def _step_on_averages(self) -> None:
        """Apply the averaged gradients; the keeper holds them ready for peers that fall behind."""
        self._load_averaged_gradients_into_optimizer_()
        self.state_averager.step(increment_epoch=True, optimizer_step=True)
        if self._role == "keeper":
            with self.grad_averager.get_tensors() as averages:
                self.state_averager.keep_average(averages)

    @property
    def follows(self) -> bool:
        """Whether this peer takes averages of missed steps from the keeper; the keeper takes most members' state."""
        return self._role != "keeper"

    @property
    def keeps_late_samples(self) -> bool:
        """Whether samples of a peer that is one step late count towards the next, as a run with delayed steps allows.

        None of them has been sent to others, who might have counted them.
        """
        is_next = self.tracker.swarm_step == self.local_epoch + 1
        return is_next and self.may_overlap and not self.attempts and not self._has_late_samples

    def follow(self, average: Sequence[torch.Tensor]) -> None:
        """Take the step that this average led to, which this peer missed; its own accumulated samples are kept."""
        self._cancel_scheduled()
        self.grad_averager.hold()
        with self._changing_state():
            self._follow_steering()
            with torch.no_grad(), self.grad_averager.get_tensors() as averaged:
                for ours, theirs in zip(averaged, average, strict=True):
                    ours.copy_(theirs)
            self._step_on_averages()
            self.grad_averager.reset_accumulated_grads_()
        self.take_back()
        self.attempts, self._has_late_samples = 0, self.grad_averager.due_samples > 0

    def take_back(self) -> None:
        """Go on towards the same step: its round in the background came to nothing."""
        self.grad_averager.take_back()
        self.tracker.report_local_progress(self.local_epoch, self.grad_averager.due_samples)

    @contextmanager
    def _changing_state(self) -> Iterator[None]:
        """Change the state unseen by other peers and the keeper's checkpoints; then begin what comes after its step."""
        with self.tracker.pause_updates(), self.state_averager.state_lock:
            yield
            self._enter_phase()
            self._begin_step()
            self.tracker.carry_over(self.grad_averager.due_samples)

    def _enter_phase(self) -> None:
        """Take up the phase in force after the state's step.

        A step at which the optimizer starts has no moments, whether this peer took it, downloaded it or restored it: to
        reset them again changes nothing.
        """
        if self._config.starts_optimizer(self.local_epoch):
            self.state_averager.optimizer.reset_statistics()
        self._follow_steering()

    def _follow_steering(self) -> None:
        """Take up what the operator wants after the state's step; to do so again changes nothing."""
        change = self.tracker.course.steering.at(self.local_epoch)
        usual = self._config.at_step(self.local_epoch).averaging.target_batch_size
        self.target_batch_size = self.tracker.target_batch_size = change.target_batch_size or usual
        scheduled = self.state_averager.scheduler.get_last_lr()
        for group, learning_rate in zip(self.state_averager.optimizer.param_groups, scheduled, strict=True):
            group["lr"] = change.learning_rate_scale * learning_rate

    def _begin_step(self) -> None:
        """Tell the tracker where the state now stands; its updates must be paused."""
        moments = optimizer_tensors(self.state_averager.optimizer)
        self.tracker.set_sketch(self.local_epoch, sketch_of(self.state_averager.main_parameters, moments))
        self.tracker.begin_step_after(self.local_epoch, self.state_averager.era)
        self._step_began_s = time.monotonic()

    def drop_gradients(self) -> int:
        """Forget what was accumulated towards the next step; returns how many samples that were."""
        lost = self.grad_averager.drop_all()
        self.tracker.report_local_progress(self.local_epoch, 0)
        return lost

    def download_state(self) -> bool:
        """Take parameters, optimizer and step from a donor; false if none had a state as new as this peer's."""
        self._cancel_scheduled()
        if self._role == "keeper":
            self._meet_all()
        loaded = self.state_averager.load_state_from_peers(
            minimum_step=self._least_useful_step,
            minimum_era=self.state_averager.era if self._role == "keeper" else self.tracker.course.era,
            adopt_era=self._role != "keeper",
            doubt=self._doubt,
        )
        with self._changing_state():
            self.grad_averager.drop_all()
        self.attempts = 0
        return bool(loaded)

    @property
    def _least_useful_step(self) -> int:
        if self.tracker.is_undone:
            return 0
        return int(self.local_epoch) + (self.tracker.swarm_step > self.local_epoch)

    def _doubt(self, donor: str, step: int, sketch: Sketch) -> str | None:
        """Return the reason not to take a donor's state of this step and sketch; None if it may be taken.

        Peers compare the sketch with the beacon's. The keeper takes only a state that most members confirm.
        """
        course = self.tracker.course
        known = self._await_sketch(step) if self._role == "keeper" else course.sketch_at(step)
        if drifted(sketch, known):
            course.suspect(donor, "state", step, "gave a state that is not the swarm's")
            return "is not the swarm's"
        if step > self.tracker.swarm_step + STEPS_AHEAD and self._role == "keeper":
            course.suspect(donor, "state", step, f"gave a state of step {step}")
        return None if known or self._role != "keeper" else "is not confirmed by most members"

    def _meet_all(self) -> None:
        """Wait until all peers that look for the keeper have found it, for a few seconds at most."""
        deadline = time.monotonic() + MEETING_S + CONFIRMATION_WAIT_S
        while not self.tracker.course.has_met_all(time.monotonic()) and time.monotonic() < deadline:
            if self.interrupted.wait(RETRY_S):
                return

    def _await_sketch(self, step: int) -> Sketch:
        """Wait a little for most members' sketch of the state after `step`; return it, or an empty one."""
        deadline = time.monotonic() + CONFIRMATION_WAIT_S
        while not (known := self.tracker.course.sketch_at(step)) and time.monotonic() < deadline:
            if self.interrupted.wait(RETRY_S):
                break
        return known

    def restore(self, step: int, era: int | None = None) -> None:
        """Declare that parameters and optimizer hold the state after `step` global steps, of this era or the same."""
        self._cancel_scheduled()
        with self._changing_state():
            self.state_averager.set_step(step)
            self.state_averager.era = self.state_averager.era if era is None else era

    def shutdown(self) -> None:
        """Leave in order; rounds that others are forming with this peer are given up."""
        self._cancel_scheduled()
        self.tracker.shutdown(self.shutdown_timeout)
        self.state_averager.shutdown()
        self.grad_averager.shutdown()
