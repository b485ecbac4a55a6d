"""One peer's averaging rounds for the next global step: required group sizes and retries.

A failed round changes nothing and is retried with the same gradients, whereas hivemind's optimizer
would step on the peer's own gradients. `peer.averaging.meetings` forms the groups.
"""

from __future__ import annotations

import logging
import math

from peer.averaging.absences import Absences
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.requirements import Requirements, least_samples
from peer.averaging.rounds import AveragedGroup, AveragingRounds, RoundSearch, SearchStage
from peer.averaging.shares import NOBODY, missing_auxiliaries
from peer.config.steering import NO_CHANGE
from peer.config.training import Averaging
from peer.gradients.buffer import GradientBuffer
from peer.network.traffic import passes_in_time
from peer.progress.decision import demands_on_group, may_average_alone, patience_s
from peer.progress.tracker import StepTracker
from peer.reporting.event_log import NOWHERE, EventLog, RoundBegun, RoundEnded, RoundOutcome
from peer.reporting.metrics import RoundCounts
from peer.runtime.waits import Waits
from peer.swarm.node_process import NodeProcess

logger = logging.getLogger(__name__)
RETRY_S = 0.1
RULING_S = 2.0  # wait for the ruling on an average, which may come after others' reports that they have it
DOUBT_S = 600.0  # longest wait for it
MOST_READY_S, READY_SHARE = 10.0, 4  # longest wait for peers that still compute, and its share of a round
LOOK_S = 1.0  # longest wait for a group until the requirements are sent again
UNAWAITED_GROUPS = 4  # number of groups that do not wait for a peer after it has missed two


class StepRounds:
    """This peer's rounds with all peers at its step, repeated until one leads to a step."""

    def __init__(
        self,
        gradients: GradientBuffer,
        averager: NodeProcess | AveragingRounds,
        tracker: StepTracker,
        line: LineEstimate,
        averaging: Averaging,
        waits: Waits,
        *,
        trains: bool,
        events: EventLog = NOWHERE,
    ) -> None:
        """Set up rounds; `trains`: whether this peer sends gradients of its own."""
        self._trains = trains
        self._gradients, self._averager, self._tracker, self._line = gradients, averager, tracker, line
        self._timeout_s, self._waits = averaging.averaging_timeout_s, waits
        self._usual = averaging  # the run file's settings
        self._in_force = NO_CHANGE, NO_CHANGE.averaging(averaging)
        self._events = events
        self.counts = RoundCounts(waits.now)
        self.attempts = 0  # failed rounds of the current step
        self.has_sent = False  # whether others may have this peer's gradients of one of them
        self._met_nobody = False  # whether the newest round found no group
        self._computes_until = -math.inf  # after a wait in vain, this peer computes for as long as it waited
        self.missing_auxiliaries: int | None = None  # computed from the newest group; None before the first group
        self.lines = NOBODY  # connections of the newest group
        self._search: RoundSearch | None = None  # the search for the next group, begun ahead of time
        self._due_since = math.inf  # start time of the current averaging
        self._round_s = 0.0  # duration of the newest group's round
        self._absences = Absences(free=1, first_rounds=UNAWAITED_GROUPS)  # peers recently absent from groups

    def prepare(self) -> None:
        """Meet the peers at this step before the batch is full, unless the run is paused."""
        self.take_up_code()
        self._require_group()
        if self._tracker.is_held:
            self.cancel()
        elif self._search is None or self._search.is_due or self._search.outcome.done():
            self._search = self._averager.seek(self._line.rate)

    def begin_step(self) -> None:
        """Reset the failure count for a new step, and cancel a round of the last step."""
        self.attempts, self.has_sent, self._computes_until = 0, False, -math.inf
        self.cancel()

    def cancel(self) -> None:
        """Give up a search that was begun ahead of time."""
        if self._search is not None and not self._search.outcome.done():
            self._averager.give_up(self._search)
        self._search = None

    @property
    def is_full(self) -> bool:
        """Whether the batch is full according to the records, or the leader has started the group."""
        may_wait = self._waits.now() >= self._computes_until
        return self.has_begun or (may_wait and (self._tracker.is_full or self._is_told_full))

    @property
    def _is_told_full(self) -> bool:
        """Whether the leader counts a full batch; for a liar, peers would stop one by one, and not meet again."""
        return self._tracker.is_told_full and (self._usual.delay or self._tracker.view.keepers > 0)

    @property
    def has_begun(self) -> bool:
        """Whether the leader has started this peer's group and waits for this peer."""
        return self._search is not None and self._search.stage is SearchStage.MET

    @property
    def is_due(self) -> bool:
        """Whether the global batch is full and this peer is not leaving, paused or on standby."""
        may_average = not (self._waits.is_interrupted or self._tracker.is_held or self.line_is_too_slow)
        return self.is_full and may_average

    @property
    def line_is_too_slow(self) -> bool:
        """Whether this trainer's connection is so slow that the whole round would fail."""
        return self._trains and not passes_in_time(self.round_bytes, self._line.rate, self._timeout_s)

    @property
    def averaging(self) -> Averaging:
        """The averaging settings, with the gradient encoding in force after the swarm's step."""
        return self._averaging_after(max(self._tracker.step, self._tracker.swarm_step))

    @property
    def round_bytes(self) -> int:
        """The bytes of gradients that a peer sends in the swarm's next round."""
        return self._gradients.size_in(self.averaging)

    def _averaging_after(self, step: int) -> Averaging:
        known, change = self._in_force, self._tracker.course.steering.at(step)
        if change is not known[0]:
            self._in_force = known = change, change.averaging(self._usual)
        return known[1]

    def take_up_code(self) -> None:
        """Switch to the gradient encoding of this step; cancels a group that uses another encoding."""
        averaging = self._averaging_after(self._tracker.step)
        if self._gradients.change(averaging):
            self.cancel()
            rank = f", PowerSGD of rank {averaging.powersgd_rank}" if averaging.powersgd_rank else ""
            logger.info(
                "from step %d on gradients are averaged in %s%s", self._tracker.step, averaging.wire_format, rank
            )

    async def average_when_due(self) -> AveragedGroup | None:
        """Average, with retries on failure; return None if this peer should compute or leave.

        A failed round is retried at once, because the batch needs no more samples. If no group was
        found, this peer computes for as long as it has waited: others may count fewer samples.
        """
        self._due_since = self._waits.now()
        try:
            while self.is_due:
                group = await self.average()
                self.counts.end(succeeded=group is not None)
                if group is not None:
                    return group
                self.attempts += 1
                await self._waits.pause(RETRY_S)
                if self._met_nobody or self._tracker.view.averaging <= 1:  # absent peers may still reach this step
                    self._computes_until = 2 * self._waits.now() - self._due_since
                    break
            return None
        finally:
            self._due_since = math.inf

    async def average(self) -> AveragedGroup | None:
        """Average with all peers at this step; if that fails, change nothing and return None."""
        tracker, gradients, averager = self._tracker, self._gradients, self._averager
        self._met_nobody = False
        self.take_up_code()
        if tracker.view.averaging <= 1 and not (self.has_begun or self._is_told_full):
            return self._own_average()
        search, self._search = self._search, None
        if search is not None and (search.is_due or search.outcome.done()):
            search = None
        self.counts.begin()
        began, failed_before = self._waits.now(), averager.failed_rounds
        here = tracker.view.here
        self._require_group()
        self._tell_begin()
        try:
            search = search or averager.seek(self._line.rate)
            gradients.load()
            averager.begin(search, gradients.due_samples)
            group = await self._await_group(search)
        except Exception as error:  # noqa: BLE001 - fault boundary: the caller retries, or downloads the keeper's state
            logger.warning("averaging for step %d failed: %r", tracker.step + 1, error)
            self._tell_end("failed", self._waits.now() - began, cause=repr(error))
            self._met_nobody = averager.failed_rounds == failed_before
            self.has_sent |= not self._met_nobody or (search is not None and search.has_averaged)
            self._give_up(search)
            return None
        finally:
            tracker.is_reducing(False)
        gradients.round_succeeded()
        self._absences.round_ended(here - group.peers)
        self._round_s = group.seconds
        if group.traffic is not None:
            self._line.passed(group.traffic)
            self.lines = group.lines
            usual_s = tracker.course.allowances.usual_s
            if usual_s:
                self.missing_auxiliaries = missing_auxiliaries(group.lines, group.traffic.promised_s, usual_s)
        is_step = group.samples >= least_samples(tracker.target_batch_size)
        tracker.round_ended(group.weights, group.counted, group.attested, samples=group.samples, is_step=is_step)
        self._tell_end("averaged" if is_step else "too few samples", self._waits.now() - began, group)
        if not is_step:  # a peer was lost or claimed too much; the others complete the batch
            logger.warning("only %d samples were averaged for step %d", group.samples, tracker.step + 1)
            self.has_sent = True
            return None
        return group

    def _tell_begin(self) -> None:
        tracker, wanted = self._tracker, self._averager.wanted
        self._events.add(
            RoundBegun(
                era=tracker.era,
                step=tracker.step + 1,
                attempt=self.attempts + 1,
                samples=self._gradients.due_samples,
                required=wanted.required,
                expected=wanted.expected,
            )
        )

    def _tell_end(
        self, outcome: RoundOutcome, seconds: float, group: AveragedGroup | None = None, cause: str = ""
    ) -> None:
        size, samples = (0, 0) if group is None else (group.size, group.samples)
        self._events.add(
            RoundEnded(
                step=self._tracker.step + 1,
                outcome=outcome,
                seconds=seconds,
                peers=size,
                samples=samples,
                cause=cause,
            )
        )

    def _own_average(self) -> AveragedGroup | None:
        """Return this peer's own mean gradient if the peer is alone in the swarm; else None."""
        tracker, samples = self._tracker, self._gradients.due_samples
        if not may_average_alone(tracker.own_id, tracker.quorum, samples, tracker.target_batch_size):
            return None
        self.cancel()
        self._gradients.load()
        return AveragedGroup(size=1, samples=samples, averaged_bytes=0, peers=frozenset({tracker.own_id}))

    def _require_group(self) -> None:
        tracker = self._tracker
        waited_s, free_s = max(0.0, self._waits.now() - self._due_since), self._free_s
        demands = demands_on_group(
            tracker.view,
            step=tracker.step,
            own_id=tracker.own_id,
            left_out=() if waited_s < free_s else self._absences.current(),
            attempts=self.attempts,
            has_waited=waited_s > self._patience_s,
        )
        self._averager.want(
            Requirements(
                era=tracker.era,
                step=tracker.step,
                code=self._gradients.averaging.code,
                target=tracker.target_batch_size,
                leaders=tracker.leaders,
                required=demands.required,
                expected=demands.expected,
                quorum=tracker.quorum,
                free_s=free_s,
                ready_s=min(MOST_READY_S, self._round_s / READY_SHARE),
                report=tracker.message(),
                samples=tracker.view.samples if tracker.view.step == tracker.step else 0,
                remaining_s=tracker.remaining_s,
            )
        )

    @property
    def _free_s(self) -> float:
        """The seconds that a leader may wait for late peers at no cost: all peers compute the next batch meanwhile."""
        batch_s = self._tracker.batch_s
        free_s = batch_s - self._round_s if self._usual.delay and batch_s < math.inf else 0.0
        return min(max(0.0, free_s), self._timeout_s / 2)

    @property
    def _patience_s(self) -> float:
        return patience_s(self._timeout_s, self._tracker.course.allowances.usual_s)

    def _give_up(self, search: RoundSearch | None) -> None:
        if search is None:
            return
        if search.has_averaged:
            self._line.failed()
        if not search.outcome.done():
            self._averager.give_up(search)

    async def _await_group(self, search: RoundSearch) -> AveragedGroup:
        """Wait for the round's result. Raises `TimeoutError` once waiting is pointless.

        Waiting is pointless after the deadline, if the batch is no longer full because a peer has
        left, or if the round failed only for this peer and the others took the step. A running
        round ends by itself. It is given up only if the others have taken the step or this peer
        leaves, and the all-reduce has ended or takes twice the time: until it is void, its average
        may be the step's. A peer that trains on nothing must not wait for ever, because it would be
        taken to hang.
        """
        tracker, averager = self._tracker, self._averager
        deadline = self._waits.now() + self._timeout_s
        failed_before, in_doubt_at, is_over_at, stage = averager.failed_rounds, math.inf, math.inf, SearchStage.LOOKING
        while True:
            await self._waits.news(LOOK_S, search.outcome)
            if search.outcome.done():
                return search.outcome.result()
            known = averager.wanted.leaders, averager.wanted.quorum
            is_known = stage is SearchStage.AVERAGING and known == (tracker.leaders, tracker.quorum)
            if is_known and search.stage is stage and self._waits.now() <= deadline:
                continue  # nothing else matters while the group averages
            now, is_full = self._waits.now(), self.is_full  # read before the stage: as a round runs, others may step
            stage = search.stage
            looks = stage is SearchStage.LOOKING
            tracker.is_reducing(not looks)
            is_current = self._averaging_after(tracker.step).code == self._gradients.averaging.code
            wanted = is_full and is_current and not self._waits.is_interrupted
            left_behind = averager.failed_rounds > failed_before and tracker.swarm_step > tracker.step
            is_over = self._waits.is_interrupted or tracker.swarm_step > tracker.step
            in_doubt_at = min(in_doubt_at, now) if stage is SearchStage.CONFIRMING else math.inf
            is_over_at = min(is_over_at, now) if is_over and in_doubt_at < math.inf else math.inf
            is_late = now > deadline + self._timeout_s or now > is_over_at + RULING_S
            gives_up = now > in_doubt_at + DOUBT_S or (is_over and is_late)
            if gives_up or (looks and (left_behind or now > deadline or not wanted)):
                raise TimeoutError("this peer waits no longer for the round")
            self._require_group()
