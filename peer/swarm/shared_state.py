"""One peer's copy of the shared training state, and its transitions between steps.

Other peers and the keeper's checkpoints always see parameters, optimizer moments, era and step
change together. `peer.swarm.transfers` downloads other peers' states.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from peer.config.run import RunConfig
from peer.gradients.buffer import GradientBuffer
from peer.gradients.remainders import RemainderFile
from peer.node.states import DonatedState
from peer.progress.fingerprint import Sketch, drifted
from peer.progress.tracker import StepTracker
from peer.progress.view import MEETING_S
from peer.runtime.waits import Waits
from peer.swarm.step_rounds import StepRounds
from peer.swarm.transfers import MissedAverage, Transfers

if TYPE_CHECKING:
    from peer.swarm.training_state import TrainingState

logger = logging.getLogger(__name__)
CONFIRMATION_WAIT_S = 3.0
DISAGREEMENT_S = 20.0  # the keeper's wait for a majority to confirm a state
FORGOTTEN_S = 600.0  # if no unconfirmed state arrives for this long, the wait starts over
NEVER = (float("-inf"), float("-inf"))
LOOK_S = 0.1


class SharedState:
    """Parameters, optimizer, era and step of one peer."""

    def __init__(
        self,
        state: TrainingState,
        transfers: Transfers,
        gradients: GradientBuffer,
        tracker: StepTracker,
        rounds: StepRounds,
        config: RunConfig,
        waits: Waits,
        *,
        is_keeper: bool,
    ) -> None:
        self._state, self._transfers, self._gradients = state, transfers, gradients
        self._tracker, self._rounds = tracker, rounds
        self._config, self._is_keeper, self._waits = config, is_keeper, waits
        self._unconfirmed = NEVER  # first and last time at which the keeper received an unconfirmed state
        self.is_disputed = False  # members disagree and no state is most common

    @property
    def step(self) -> int:
        """Global steps completed."""
        return self._state.step

    @property
    def era(self) -> int:
        """The number of times that the run had returned to a checkpoint when this state was taken."""
        return self._state.era

    @property
    def shapes(self) -> Sequence[torch.Size]:
        """The shapes of the averaged gradients."""
        return self._state.shapes

    @property
    def sketch(self) -> Sketch:
        """The sketch of this state."""
        return self._tracker.sketch

    @property
    def is_downloading(self) -> bool:
        """Whether a download of a state or average is in progress, which may take hours."""
        return self._transfers.is_downloading

    def take_step(self, voters: Collection[str]) -> None:
        """Apply the gradient that these peers have averaged in one optimizer step, and begin the next global step.

        The next step starts with the samples accumulated during a background round.
        """
        with self._changing(), self._gradients.making_room():
            self._follow_steering()  # the beacon may have arrived since this step began
            self._step_on_averages(voters)

    def follow(self, average: MissedAverage) -> None:
        """Apply the average of a missed step; this peer's own accumulated samples are kept."""
        self._gradients.hold()
        with self._changing():
            self._follow_steering()
            self._gradients.load_average(average.tensors)
            self._step_on_averages(average.voters)
            self._gradients.drop()

    async def download(self) -> bool:
        """Download the state from a donor; return False if no donor had a recent enough state."""
        self._rounds.begin_step()
        if self._is_keeper:
            await self._meet_all()
        donated = await self._find_donated()
        with self._changing():
            if donated is not None:
                self._state.adopt(donated)
                self._unconfirmed, self.is_disputed = NEVER, False
            self._gradients.drop_all()
            self._gradients.forget_remainders()
        return donated is not None

    async def _find_donated(self) -> DonatedState | None:
        """Return the first donated state that is recent enough and is not doubted."""
        refused: list[str] = []
        while (found := await self._transfers.state(self._state.all_shapes, refused)) is not None:
            fault = await self._fault_of(found)
            named = found.voters
            if self._is_keeper:  # it sets the eras, and a trainer may name others as the voters than there were
                found = replace(found, era=self.era, voters=())
            self._transfers.state_judged(found, fault)
            if fault is None:
                self._tracker.named_voters = frozenset(named)
                return found
            refused.append(found.donor)
        return None

    async def _fault_of(self, donated: DonatedState) -> str | None:
        """Return the reason to reject a donor's state, or None to accept it."""
        if donated.step < (least := self._least_useful_step):
            return f"is none of step {least} or later"
        if donated.era < (least := self.era if self._is_keeper else self._tracker.course.era):
            return f"is none of era {least} or later"
        return await self._doubt(donated.donor, donated.step, self._state.sketch_of_other(donated))

    def restore(self, step: int, era: int | None = None) -> None:
        """Set the number of completed global steps of a state loaded from a checkpoint.

        With a newer `era`, set by the keeper, all peers that are ahead return to this state.
        """
        with self._changing():
            self._state.set_step(step)
            self._state.era = self.era if era is None else era
        self._unconfirmed, self.is_disputed = NEVER, False

    def resume_remainders(self, file: RemainderFile) -> None:
        """Load the remainders saved by the last session, if they belong to the next step."""
        self._rounds.take_up_code()
        self._gradients.resume_remainders(file, self.era, max(self.step, self._tracker.swarm_step))

    def keep_remainders(self, file: RemainderFile) -> None:
        """Save the remainders unless a round of this step failed: others may have counted them."""
        if not self._rounds.has_sent:
            self._gradients.keep_remainders(file, self.era, self.step)

    def _step_on_averages(self, voters: Collection[str]) -> None:
        """Apply the averaged gradients; the keeper also stores them for peers that fall behind."""
        gradients = self._gradients
        with gradients.shared.used() as averages:
            self._state.load_gradients(averages)
        self._state.advance(voters)
        if self._is_keeper:
            code = gradients.averaging.wire_format
            with gradients.shared.used() as averages:
                self._transfers.keep(self.era, self.step, averages, gradients.factors, code, voters)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hide changes of the state from readers until the block ends; then begin the next step."""
        self._rounds.begin_step()
        with self._state.lock:
            yield
            self._enter_phase()
            self._begin_step()

    def _enter_phase(self) -> None:
        """Apply the settings of the phase in force after the state's step.

        After a step at which the optimizer is reset, the state has no moments, whether the step was
        taken, downloaded or restored. The reset is therefore idempotent.
        """
        if self._config.starts_optimizer(self.step):
            self._state.forget_moments()
        self._follow_steering()

    def _follow_steering(self) -> None:
        """Apply the operator's steering for the state's step; idempotent."""
        change = self._tracker.course.steering.at(self.step)
        usual = self._config.at_step(self.step).averaging.target_batch_size
        self._tracker.target_batch_size = change.target_batch_size or usual
        self._state.scale_rates(change.learning_rate_scale)

    def _begin_step(self) -> None:
        """Report the state's new step and era to the tracker."""
        state = self._state
        self._tracker.begin_step(self.step, self.era, state.voters, state.sketch(), self._gradients.due_samples)

    @property
    def _least_useful_step(self) -> int:
        if self._tracker.is_undone:
            return 0
        return self.step + (self._tracker.swarm_step > self.step)

    async def _doubt(self, donor: str, step: int, sketch: Sketch) -> str | None:
        """Return the reason to reject a donor's state after `step`, or None to accept it.

        Peers compare the state's sketch with the beacon's. The keeper requires that a majority of
        members report the same sketch. If no majority is found for `DISAGREEMENT_S`, it accepts the
        most common state, which the other members then adopt.
        """
        course = self._tracker.course
        known = await self._await_sketch(step) if self._is_keeper else course.sketch_at(step)
        if drifted(sketch, known):
            course.judge_donor(donor, step, sketch)
            return "is not the swarm's"
        if known or not self._is_keeper:
            return None
        (first, last), now = self._unconfirmed, self._waits.now()
        first = first if now - last < FORGOTTEN_S else now
        self._unconfirmed = first, now
        may_be_taken = step <= self._tracker.swarm_step and course.is_most_reported(step, sketch)
        if now - first < DISAGREEMENT_S or not may_be_taken:
            self.is_disputed = now - first >= 2 * DISAGREEMENT_S
            return "is not confirmed by most members"
        logger.warning("members hold different states after step %d: taking the one that most of them report", step)
        return None

    async def _meet_all(self) -> None:
        """Wait a few seconds, so that all peers that search for the keeper find it."""
        deadline = self._waits.now() + MEETING_S + CONFIRMATION_WAIT_S
        while not self._tracker.course.has_met_all(self._waits.now()) and self._waits.now() < deadline:
            if await self._waits.pause(LOOK_S):
                return

    async def _await_sketch(self, step: int) -> Sketch:
        """Wait briefly for the majority's sketch of the state after `step`; empty if none."""
        deadline = self._waits.now() + CONFIRMATION_WAIT_S
        while not (known := self._tracker.course.sketch_at(step)) and self._waits.now() < deadline:
            if await self._waits.pause(LOOK_S):
                break
        return known
