"""One peer's moves towards the next global step, as chosen by `peer.progress.decision`.

`peer.swarm.step_rounds` averages, `peer.swarm.transfers` downloads, and `peer.swarm.shared_state`
changes the state. The same moves run in real and in virtual time (`peer.runtime.waits`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from peer.averaging.bandwidth import LineEstimate
from peer.averaging.rounds import AveragedGroup, AveragingRounds
from peer.config.run import RunConfig
from peer.gradients.buffer import GradientBuffer
from peer.node.average_history import Lack
from peer.progress.decision import DownloadPause, Move, Situation, decide, longest_hold_s
from peer.progress.fingerprint import drifted
from peer.progress.tracker import StepTracker
from peer.progress.view import MOST_BATCHES
from peer.reporting.advice import Conditions
from peer.reporting.event_log import CaughtUp, EventLog, StepTaken, StoodBy
from peer.reporting.messages import LostCause
from peer.runtime.waits import Waits
from peer.swarm.node_process import NodeProcess
from peer.swarm.shared_state import SharedState
from peer.swarm.step_rounds import StepRounds
from peer.swarm.transfers import Transfers

if TYPE_CHECKING:
    from peer.swarm.training_state import TrainingState

logger = logging.getLogger(__name__)
LOOK_AGAIN_S = (0.5, 1.5)  # bounds of a random interval, which spreads the requests for a missed average
MOST_SILENT_LOOKS = 5  # unanswered requests before the whole state is downloaded
REST_S = 1.0  # longest wait of a peer that may compute no more, until it looks for its next move
Round = futures.Future[tuple[AveragedGroup | None, float]]  # the averaged group, and the duration in seconds


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one attempt at a global step."""

    step: int  # global steps completed afterwards
    samples: int  # this peer's samples in the average
    averaged: bool  # whether the step was taken
    group_size: int
    group_samples: int | None  # all samples in the average
    averaging_s: float
    averaged_bytes: int = 0  # bytes received from others for reduction
    receipt: str = ""  # signed receipt of the others' samples; empty if this peer reduced nothing
    era: int = 0  # era of the state before the step
    lost_samples: int = 0
    lost_reason: str = ""
    followed_steps: int = 0  # missed steps that this peer took from their averages


class Moves:
    """One peer's actions between its microbatches."""

    def __init__(
        self,
        config: RunConfig,
        role: str,
        tracker: StepTracker,
        gradients: GradientBuffer,
        averager: NodeProcess | AveragingRounds,
        training: TrainingState,
        transfers: Transfers,
        line: LineEstimate,
        waits: Waits,
        *,
        receipt_of: Callable[[int, int, AveragedGroup], str],
        events: EventLog,
        rng: random.Random,
    ) -> None:
        """Set up the moves; `receipt_of` signs a receipt for a group, given the new era and step."""
        self._config, self._tracker, self._gradients = config, tracker, gradients
        self._transfers, self._line, self._waits = transfers, line, waits
        self._receipt_of, self._events, self._rng = receipt_of, events, rng
        self._may_follow = role != "keeper"  # the keeper adopts the majority's state and follows no averages
        trains = role == "trainer"
        self.rounds = StepRounds(
            gradients, averager, tracker, line, config.averaging, waits, trains=trains, events=events
        )
        self.state = SharedState(
            training, transfers, gradients, tracker, self.rounds, config, waits, is_keeper=role == "keeper"
        )
        self._overlapping: Round | None = None  # the round in the background, from the wait for its group on
        self._offer: futures.Future[None] = futures.Future()  # of its gradients; running once its group has begun
        self.stands_by = False  # whether this peer waits for a faster connection
        self.last_samples = 0  # samples in this peer's newest microbatch
        self._held = -1, 0.0  # newest step with a wait for a batch's last samples, and the seconds waited
        self._held_after = -1  # step after which the wait for the last samples timed out; -1: none
        self._has_late_samples = False  # the accumulated samples are already one step late, which is the maximum
        self._silent_looks = 0  # successive unanswered requests for a missed average
        self._unfollowed = -1  # step after which the next average is unavailable; -1: none
        self._pause = DownloadPause(waits.now)

    @property
    def step(self) -> int:
        """The number of global steps included in this peer's state."""
        return self.state.step

    @property
    def is_behind(self) -> bool:
        """Whether this peer lacks the swarm's state, and no round runs in the background."""
        tracker = self._tracker
        has_other = tracker.swarm_step > self.step or tracker.has_drifted or tracker.is_undone
        return self._overlapping is None and has_other

    @property
    def wants_samples(self) -> bool:
        """Whether this peer has the swarm's state and room for another microbatch."""
        return not (self.is_behind or self._has_enough or self.rounds.line_is_too_slow)

    @property
    def is_held(self) -> bool:
        """Whether the operator has paused the run; False once the run has ended."""
        return self._tracker.course.steering.paused and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether this peer (or, during its standby, the swarm) has taken the run's last step."""
        step = self._tracker.swarm_step if self.stands_by else self.step
        return self._tracker.course.steering.has_ended(step)

    @property
    def _has_enough(self) -> bool:
        return self.is_held or self._gradients.all_samples >= MOST_BATCHES * self._tracker.target_batch_size

    def computed(self, samples: int) -> None:
        """Note a microbatch whose gradient was added to those accumulated."""
        self.last_samples = samples
        self._tracker.rate.computed(samples)
        if not self._gradients.holds:  # otherwise, these samples count towards the next step
            self._report()

    def conditions(self) -> Conditions:
        """Return the durations that determine whether this peer's samples arrive in time."""
        rate, line_rate = self._tracker.rate.per_second, self._line.rate
        return Conditions(
            step_s=self._tracker.course.allowances.usual_s,
            sample_s=1 / rate if rate else 0.0,
            round_s=self.rounds.round_bytes / line_rate if line_rate else 0.0,
            longest_round_s=self._config.averaging.averaging_timeout_s,
        )

    async def advance(self, collect: Callable[[], None] = lambda: None) -> StepOutcome | None:
        """Take the next global step if its batch is full; return None otherwise.

        See `peer.swarm.swarm.Swarm.advance`.
        """
        with self._tracker.rate.pause():
            outcome = await self._advance(collect)
            may_go_on = outcome is not None and self._may_set_aside and not (self.is_behind or self.stands_by)
            if may_go_on and decide(self._situation())[0] is Move.AVERAGE_BESIDE:
                self.rounds.prepare()  # the next group may begin while this device computes
                await self._begin_beside()  # collects nothing, because the backend still holds dropped gradients
            return outcome

    async def _advance(self, collect: Callable[[], None]) -> StepOutcome | None:
        if self._overlapping is not None and not self._retracts():
            return await self._conclude(self._overlapping, collect)
        move, reason = decide(self._situation())
        if move is Move.HOLD:
            await self._hold()
            move, reason = decide(self._situation())
        if move is Move.WAIT:
            self.rounds.cancel()
            await self._waits.pause(self._rng.uniform(*LOOK_AGAIN_S))
            return None
        if move is Move.STAND_BY:
            return await self._stand_by()
        if self.stands_by:
            self.stands_by = False
            self._tracker.stand_by(None)
        if move in (Move.FOLLOW, Move.DOWNLOAD):
            logger.info("%s after step %d: %s", move.value, self.step, reason)
            return await (self._follow(collect) if move is Move.FOLLOW else self._catch_up())
        self.rounds.prepare()
        if move is Move.ACCUMULATE:
            if self._has_enough:
                await self._waits.news(REST_S)
            return None
        collect()
        if move is Move.AVERAGE_BESIDE:
            await self._begin_beside()
            return None
        return self._step(*await self._average())

    async def _hold(self) -> None:
        """Wait while `Move.HOLD` applies; after a timeout, do not wait again in this step."""
        tracker, began, step = self._tracker, self._waits.now(), self.step
        held_before_s = self._held[1] if self._held[0] == step else 0.0
        longest_s = longest_hold_s(
            tracker.course.allowances.usual_s,
            self._config.averaging.progress_refresh_s,
            tracker.missing_samples,
            tracker.view.faster_rate(tracker.own_id),
        )
        self.rounds.prepare()
        if not tracker.is_led:  # otherwise, the leader tells when the batch is full
            tracker.look_now()
        while decide(self._situation())[0] is Move.HOLD:
            left_s = longest_s - held_before_s - (self._waits.now() - began)
            if left_s <= 0 or self._waits.is_interrupted:
                self._held_after = step
            else:
                await self._waits.news(left_s)
        self._held = step, held_before_s + self._waits.now() - began

    async def _stand_by(self) -> StepOutcome | None:
        """Wait for a faster connection; the first call returns an outcome with the lost samples."""
        self._line.doubt()
        self._tracker.stand_by(self._line.rate)
        if self.stands_by:
            await self._waits.pause(self._rng.uniform(*LOOK_AGAIN_S))
            return None
        self.stands_by = True
        self.rounds.cancel()
        lost = self._drop_gradients()
        self._events.add(StoodBy(step=self.step, round_s=self.conditions().round_s, lost_samples=lost))
        return self._without_step(0.0, lost, LostCause.SLOW_LINE.value)

    def _situation(self) -> Situation:
        """Return this peer's situation; a peer with a drifted state cannot follow averages."""
        tracker = self._tracker
        may_follow = self._may_follow and self._unfollowed != self.step
        return Situation(
            step=self.step,
            swarm_step=tracker.swarm_step,
            is_too_slow=self.rounds.line_is_too_slow,
            is_undone=tracker.is_undone,
            has_drifted=tracker.has_drifted,
            can_follow=may_follow and not drifted(tracker.sketch, tracker.course.sketch_at(self.step)),
            may_download=self._pause.is_over or not self._may_follow,
            is_leaving=self._waits.is_interrupted,
            is_held=tracker.is_held,
            is_full=self.rounds.is_full,
            remaining_s=tracker.remaining_s,
            microbatch_s=self.last_samples / rate if (rate := tracker.rate.per_second) else 0.0,
            may_hold=self._held_after != self.step,
            may_overlap=self._may_overlap,
            may_set_aside=self._may_set_aside,
        )

    @property
    def _may_overlap(self) -> bool:
        """Whether this peer may train during the next round; samples must not cross a phase boundary."""
        may_train = self._config.averaging.delay and self._may_follow
        return may_train and all(phase.from_step != self.step + 1 for phase in self._config.phases)

    @property
    def _may_set_aside(self) -> bool:
        """Whether gradients may be set aside before the batch is full; local steps yield no sums to set aside."""
        return self._may_overlap and self._config.averaging.local_steps == 1 and not self._has_enough

    @property
    def _is_ahead(self) -> bool:
        """Whether this peer has computed its share (by rate) of the next batch, or may add no more.

        Such a peer waits, which limits the next batch to the configured size.
        """
        own, all_rates = self._tracker.rate.per_second, self._tracker.view.rate
        share = min(1.0, own / all_rates) if all_rates > 0 else 1.0
        has_share = self._gradients.samples >= share * self._tracker.target_batch_size
        return bool(has_share) or self._has_enough

    async def finish(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Interrupt a background round before leaving; return its outcome, if there is one."""
        self._waits.interrupt()
        overlapping = self._overlapping
        if overlapping is None or self._retracts():
            return None
        while not overlapping.done():
            await self._waits.news(REST_S, overlapping)
        return await self._conclude(overlapping, collect)

    async def _average(self) -> tuple[AveragedGroup | None, float]:
        began = self._waits.now()
        return await self.rounds.average_when_due(), self._waits.now() - began

    async def _begin_beside(self) -> None:
        """Set the collected gradients aside for a round in the background."""
        self._gradients.hold()
        self._offer = futures.Future()
        self._overlapping = self._waits.start(self._average_beside(self._offer))
        if self._has_enough:  # this peer computes nothing meanwhile
            await self._waits.news(REST_S, self._overlapping)

    async def _average_beside(self, offer: futures.Future[None]) -> tuple[AveragedGroup | None, float]:
        """Average the gradients set aside once the batch is full, unless the offer is retracted before."""
        while not (self.rounds.is_due or offer.cancelled() or self._waits.is_interrupted):
            await self._waits.news(REST_S, offer)
        if offer.set_running_or_notify_cancel():
            return await self._average()
        return None, 0.0

    def _retracts(self) -> bool:
        """Take back the gradients set aside for a round unless it has begun; return whether it has not."""
        if not self._offer.cancel():
            return False
        self._overlapping = None
        self._gradients.take_back()
        self._report()
        return True

    async def _conclude(self, overlapping: Round, collect: Callable[[], None]) -> StepOutcome | None:
        """Take the step of a background round; return None if it is running or has failed."""
        while (self._is_ahead or self.rounds.line_is_too_slow) and not (
            overlapping.done() or self._waits.is_interrupted
        ):
            await self._waits.news(REST_S, overlapping)
        if not overlapping.done():
            return None
        self._overlapping = None
        group, seconds = overlapping.result()
        if group is None:
            self._gradients.take_back()
            self._report()
            return None
        collect()  # these gradients belong to the next step
        return self._step(group, seconds)

    def _step(self, group: AveragedGroup | None, seconds: float) -> StepOutcome | None:
        if group is None:
            return None
        samples = self._gradients.due_samples
        self.state.take_step(group.peers)
        self._has_late_samples = False
        self._pause.end()
        self._events.add(
            StepTaken(
                era=self.state.era, step=self.step, samples=samples, group_samples=group.samples, peers=group.size
            )
        )
        return StepOutcome(
            self.step,
            samples,
            True,
            group.size,
            group.samples,
            seconds,
            group.averaged_bytes,
            receipt=self._receipt_of(self.state.era, self.step, group),
            era=self.state.era,
        )

    async def _follow(self, collect: Callable[[], None]) -> StepOutcome | None:
        """Apply the average of the first missed step; return None if the average is unavailable.

        Accumulated samples are discarded, unless the run accepts samples that are one step late.
        """
        began = self._waits.now()
        keeps_samples, reason = self._keeps_late_samples, self._why_lost()
        average = await self._transfers.average(self.state.era, self.step, self.state.shapes)
        if isinstance(average, Lack):
            self._silent_looks = self._silent_looks + 1 if average is Lack.SILENT else 0
            if average is Lack.GONE or self._silent_looks >= MOST_SILENT_LOOKS:
                self._silent_looks, self._unfollowed = 0, self.step
            else:
                await self._waits.pause(self._rng.uniform(*LOOK_AGAIN_S))
            return None
        self._silent_looks, lost = 0, 0
        if keeps_samples:
            collect()
        else:
            lost = self._drop_gradients()
        self.state.follow(average)
        self._gradients.take_back()
        self._report()
        self._has_late_samples = self._gradients.due_samples > 0
        return self._caught_up(self._waits.now() - began, lost, reason, followed_steps=1)

    @property
    def _keeps_late_samples(self) -> bool:
        """Whether samples one step late count towards the next step, as delayed steps allow.

        These samples must not have been sent to other peers, which might have counted them.
        """
        is_next = self._tracker.swarm_step == self.step + 1
        return is_next and self._may_overlap and not self.rounds.has_sent and not self._has_late_samples

    async def _catch_up(self) -> StepOutcome:
        reason = self._why_lost()
        lost = self._drop_gradients()
        began = self._waits.now()
        downloaded = await self.state.download()
        seconds = self._waits.now() - began
        self._pause.begin(seconds if downloaded else None)
        self._unfollowed = -1
        return self._caught_up(seconds, lost, reason)

    def _caught_up(self, seconds: float, lost: int, reason: str, followed_steps: int = 0) -> StepOutcome:
        way: Literal["average", "state"] = "average" if followed_steps else "state"
        cause = reason if lost else ""
        self._events.add(CaughtUp(way=way, step=self.step, seconds=seconds, lost_samples=lost, cause=cause))
        return self._without_step(seconds, lost, cause, followed_steps)

    def _without_step(self, seconds: float, lost: int, cause: str, followed_steps: int = 0) -> StepOutcome:
        return StepOutcome(
            self.step,
            samples=0,
            averaged=False,
            group_size=0,
            group_samples=None,
            averaging_s=seconds,
            lost_samples=lost,
            lost_reason=cause,
            followed_steps=followed_steps,
        )

    def _why_lost(self) -> str:
        """Return the reason for adopting another state and losing the accumulated samples."""
        if self._tracker.is_undone:
            return LostCause.UNDONE.value
        if self._tracker.swarm_step <= self.step:
            return LostCause.OUT_OF_SYNC.value
        return LostCause.AVERAGING.value if self.rounds.attempts else LostCause.LATE.value

    def _drop_gradients(self) -> int:
        """Discard the gradients accumulated for the next step; return their number of samples.

        Remainders of earlier steps are kept unless a round used them: others may have counted them.
        """
        lost = self._gradients.drop_all()
        if self.rounds.has_sent:
            self._gradients.forget_remainders()
        self._report()
        return lost

    def _report(self) -> None:
        self._tracker.report(self._gradients.due_samples)
