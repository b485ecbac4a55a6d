"""One peer in virtual time: the moves of a real peer (`peer.swarm.moves`), and a trainer that takes time to compute."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from auth.tokens import Role
from peer.averaging.absences import Attendance
from peer.averaging.bandwidth import LineEstimate
from peer.averaging.requirements import Heard
from peer.averaging.rounds import AveragingRounds, OwnSide, RoundSearch
from peer.progress.decision import ASK_EVERY, RETRY_S, samples_at_once
from peer.progress.refresh import Refresh
from peer.progress.tracker import Clocks, Owner, StepTracker
from peer.progress.view import SwarmCourse
from peer.reduction.findings import Accusations
from peer.rehearsal.exchange import RehearsedExchange
from peer.rehearsal.gradients import RehearsedGradients, RehearsedReduction
from peer.rehearsal.meetings import RehearsedMeetings
from peer.rehearsal.scenario import KEEPER, Rehearsed
from peer.rehearsal.states import RehearsedState, RehearsedTransfers
from peer.rehearsal.waits import VirtualWaits
from peer.rehearsal.world import World
from peer.reporting.event_log import Event, EventLog, RoundEnded, StoodBy
from peer.reporting.messages import LostCause
from peer.swarm.moves import Moves, StepOutcome
from peer.swarm.transfers import Transfers

if TYPE_CHECKING:
    from peer.swarm.training_state import TrainingState

SURVIVORS_WAIT_S, SURVIVORS_TOLD_S, SURVIVORS_STATE_S = 10.0, 60.0, 60.0  # same as in `coordinator.keeper.recovery`
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

    def __init__(self, world: World, device: Rehearsed, role: Role, work: Work, course: SwarmCourse) -> None:
        self.world, self.device, self.role, self.work = world, device, role, work
        self.name = device.name
        config = world.config
        self.waits = VirtualWaits(world.troubles.thaw_of(device.name))
        self._transport = self.waits.within(lambda: world.join(device.name))
        world.members.joins(device.name, device.member or device.name, role)
        owner = Owner(device.name, device.member or device.name, device.name, role, not device.is_reachable)
        averaging = config.averaging
        self.tracker = StepTracker(
            owner,
            "",
            course,
            target_batch_size=averaging.target_batch_size,
            refresh=Refresh(averaging.progress_refresh_s, averaging.statistics_expiration_s),
            keepers={KEEPER},
            clocks=Clocks(self.waits.now, self.waits.now),
        )
        self.exchange = RehearsedExchange(world, owner, self.tracker, self.waits)
        self._line = LineEstimate(world.declared_rate(device), self.waits.now, world.rng)
        self.gradients = RehearsedGradients(world, device.name)
        attendance, members = Attendance(device.name), world.members
        self._meetings = RehearsedMeetings(world, device.name, self._transport, self._deliver)
        self._averager = AveragingRounds(
            self._meetings,
            RehearsedReduction(world, device.name, self.gradients, course, attendance),
            attendance,
            Accusations(self.waits.now),
            members,
            OwnSide(device.name, "rehearsal", device.is_reachable, reduces=True),
            averaging,
            opened=members.opened,
            signed=partial(members.declare, device.name),
            changed=self._stage_reached,
        )
        self.transfers = RehearsedTransfers(world, device, role, self.waits)
        self.state = RehearsedState(world)
        self._moves = Moves(
            config,
            role,
            self.tracker,
            self.gradients,
            self._averager,
            cast("TrainingState", self.state),
            cast(Transfers, self.transfers),
            self._line,
            self.waits,
            receipt_of=lambda *_: "",
            events=cast(EventLog, self),
            rng=world.rng,
        )
        self.rounds, self._shared = self._moves.rounds, self._moves.state
        self._resumes = False
        self.has_state = role == "keeper"
        self.began_at: float | None = None  # time at which this peer first had the run's state
        self._shared.restore(0)

    # lifecycle

    async def run(self) -> None:
        """Run until asked to leave, or until cancelled by a crash of the device."""
        try:
            if self.role != "keeper":
                await asyncio.sleep(self.world.scenario.start_s)
            await self._meetings.serve()
            self.waits.spawn(self.exchange.run())
            if self.role != "keeper":
                await self._take_first_state()
            elif self._resumes:
                await self._resume_run()
            self.began_at = self.waits.now()
            if not self.waits.is_interrupted:
                self.has_state = True
                self._tell("joined", self.state.step)
                await (self._train() if self.role == "trainer" else self._assist())
            self._settle(await self._moves.finish(lambda: None))
            self.tracker.leave()
            self.exchange.publish()
        finally:
            self._averager.stop()
            self.die()
            self.world.gone(self)
            self._lose(LostCause.LEFT.value, self.gradients.drop_all())
            self.stop()

    def _deliver(self, heard: Heard) -> bool:
        if self.waits.is_stopped:  # though its timers run
            return False
        if not self.waits.is_dead:
            self.tracker.hear(heard)
            self.waits.tell()
        return True

    def _stage_reached(self, search: RoundSearch) -> None:
        del search
        self.waits.tell()

    def die(self) -> None:
        """End everything that runs on this device without notice."""
        if self.world.network.find(self.name) is self._transport:  # otherwise, the device has been restarted since
            self.world.network.kill(self.name)
        self.waits.die()

    def stop(self) -> None:
        """Add the seconds since this peer first had the run's state to its device's total."""
        if self.began_at is not None:
            self.work.present_s += self.waits.now() - self.began_at
            self.began_at = None

    def resume(self, era: int) -> None:
        """Restart a killed keeper from its newest checkpoint."""
        self._resumes, step = True, 0
        if self.world.checkpoint is not None:
            _, step, self.state.number = self.world.checkpoint
        self._shared.restore(step, era)

    async def _resume_run(self) -> None:
        """Look for peers with a newer state, or undo the lost steps (`Recovery.resume_ledger`)."""
        resumed_at, recorded, are_found, state = self.state.step, self.world.recorded, False, self.state
        may_undo = recorded > resumed_at
        until_s = self.waits.now()
        if recorded or resumed_at:
            until_s += SURVIVORS_TOLD_S if may_undo else SURVIVORS_WAIT_S
        while state.step == resumed_at and self.waits.now() < until_s:
            if self._moves.is_behind and not are_found:
                are_found, until_s = True, self.waits.now() + SURVIVORS_STATE_S
            if self._moves.is_behind or not may_undo:
                await self._advance()
            await self.waits.news(POLL_S)
        if recorded > state.step:
            self.world.undo(state.step, state.era + 1)
            self._shared.restore(state.step, state.era + 1)

    def leave(self) -> None:
        """Ask this peer to leave at the next opportunity."""
        self.waits.interrupt()

    async def _train(self) -> None:
        assert self.device.samples_per_second is not None
        while not self.waits.is_interrupted:
            if not self._moves.wants_samples:
                await self._advance()
                continue
            most = min(self.world.config.data.microbatch_size, self.tracker.target_batch_size)
            usual_s = self.tracker.course.allowances.usual_s
            samples = samples_at_once(most, self.tracker.rate.per_second, usual_s)
            await asyncio.sleep(samples / self.device.samples_per_second)
            self.work.computed += samples
            self.tracker.begin_training()
            self.gradients.add(samples)
            self._moves.computed(samples)
            await self._advance()

    async def _assist(self) -> None:
        self.tracker.begin_training()
        while not self.waits.is_interrupted:
            await self._advance()
            if not self.rounds.is_due:
                await self.waits.news(max(POLL_S, self.tracker.look_in_s))

    async def _advance(self) -> None:
        self._measure_line()
        self._settle(await self._moves.advance())

    def _measure_line(self) -> None:
        if self._line.is_due():
            self._line.measured(self.world.network.lines.rate(self.name))

    def _settle(self, outcome: StepOutcome | None) -> None:
        """Count the samples of a step, and those that were lost."""
        if outcome is None:
            return
        if outcome.averaged:
            if self.role == "trainer":
                self.work.counted += outcome.samples
                self.work.steps += 1
            self.world.step_taken(self, self.gradients.newest, outcome.samples)
        elif outcome.followed_steps:
            self._tell("followed", outcome.step)
        self._lose(outcome.lost_reason, outcome.lost_samples)

    def _lose(self, cause: str, samples: int) -> None:
        if samples and self.role == "trainer":
            self.work.lost[cause] += samples
            self._tell("lost", samples, cause)

    # the first state

    async def _take_first_state(self) -> None:
        """Load the newest checkpoint or a donor's state; the counterpart of `StateTaking.run`."""
        attempts = 0
        while not self.waits.is_interrupted:
            if attempts % ASK_EVERY == 0 and await self._take_checkpoint():
                return
            if await self._shared.download():
                self.work.downloads += 1
                return
            attempts += 1
            await self.waits.pause(self.world.rng.uniform(0.5, 1.5) * RETRY_S)

    async def _take_checkpoint(self) -> bool:
        """Download the newest checkpoint from the coordinator; return whether that succeeded."""
        checkpoint = self.world.usable_checkpoint
        if checkpoint is None or not self.world.can_reach(KEEPER, self.name):
            return False
        if not await self.transfers.checkpoint() or self.world.usable_checkpoint is None:
            return False
        era, step, self.state.number = checkpoint
        self._shared.restore(step, era)
        self._tell("took the checkpoint", step)
        return True

    # its log

    def add(self, event: Event) -> None:
        """Tell what a real peer would log (`peer.reporting.event_log.EventLog`)."""
        self._measure_line()  # in a real peer, another process does so at any time
        if isinstance(event, StoodBy):
            self._tell("stands by", event.step)
        elif isinstance(event, RoundEnded) and event.outcome == "failed":
            self._tell("found no group", event.step)

    def _tell(self, what: str, *facts: Any) -> None:
        self.world.tell(self.name, what, *facts)
