"""One peer's averager in virtual time: samples instead of gradients (`peer.averaging.averager`).

Its rounds pass in the model of `peer.rehearsal.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import simpy
from hivemind.averaging.control import AveragingStage

from peer.averaging.absences import Absences, absent_of
from peer.averaging.averager import MISSED_ROUNDS, AveragedGroup
from peer.averaging.declarations import MOST_MISSED, Declaration
from peer.averaging.meetings import LEAST_GRACE_S, MOST_GRACE_S, Heard, Requirements
from peer.averaging.rounds import RoundDeadline
from peer.config.training import Averaging
from peer.progress.view import SwarmCourse
from peer.reduction.findings import Finding
from peer.reduction.sizes import RoundBytes
from peer.rehearsal.groups import FailedRound, MetGroup, Seeker
from peer.rehearsal.scenario import Rehearsed
from peer.rehearsal.waits import VirtualFuture, VirtualWaits, until
from peer.rehearsal.world import World

RehearsedAverage = int  # number of an average


class RehearsedRound(VirtualFuture[AveragedGroup]):
    """One peer's search for a group and its round (hivemind's `StepControl`)."""

    def __init__(self, env: simpy.Environment, give_up: Callable[[RehearsedRound], None]) -> None:
        super().__init__(env)
        self._give_up = give_up
        self.weight: float | None = None  # this peer's samples; None before it begins to average
        self.seeker: Seeker | None = None
        self.began_allreduce = False

    @property
    def triggered(self) -> bool:
        """Whether this peer has begun to average."""
        return self.weight is not None

    @property
    def stage(self) -> AveragingStage:
        """The stage of the search or round."""
        seeker = self.seeker
        if seeker is None or not seeker.is_running:
            return AveragingStage.LOOKING_FOR_GROUP
        if seeker.is_in_doubt:
            return AveragingStage.FINISHED
        return AveragingStage.AWAITING_TRIGGER if self.weight is None else AveragingStage.RUNNING_ALLREDUCE

    def cancel(self) -> bool:
        """Give up the search or round."""
        self._give_up(self)
        return super().cancel()


class RehearsedAverager:
    """The part of `SwarmGradientAverager` that a peer's moves use."""

    factors: dict[int, Any] = {}  # noqa: RUF012 - PowerSGD's factors are not rehearsed
    turned_away = 0

    def __init__(
        self,
        world: World,
        device: Rehearsed,
        role: str,
        course: SwarmCourse,
        waits: VirtualWaits,
        hear: Callable[[Heard], None],
    ) -> None:
        """Set up the averager of a device's peer; `course` provides the weight caps for its reduction.

        `hear` processes the leader's messages.
        """
        self._world, self._env, self._device, self._role = world, world.env, device, role
        self._course, self._waits, self._hear = course, waits, hear
        self.averaging = world.config.averaging
        self._bytes = world.scenario.round_bytes(self.averaging)
        self._deadline = RoundDeadline(self.averaging.averaging_timeout_s)
        self._grace = RoundDeadline(MOST_GRACE_S, LEAST_GRACE_S)
        self._missed = Absences(free=0, first_rounds=MISSED_ROUNDS)
        self.findings = self
        self.bandwidth: float | None = None
        self.wanted = Requirements()
        self.failed_rounds = 0
        self.local_samples_accumulated = 0
        self._held: int | None = None  # samples in a background round; None: no round
        self.average: RehearsedAverage = 0  # number of the newest average
        self.newest: MetGroup | None = None  # the group that made it; None if this peer was alone or followed
        self._round: RehearsedRound | None = None

    # samples

    @property
    def holds(self) -> bool:
        """Whether samples are held for a round while newer samples accumulate separately."""
        return self._held is not None

    @property
    def due_samples(self) -> int:
        """This peer's samples towards the next global step."""
        return self.local_samples_accumulated if self._held is None else self._held

    @property
    def all_samples(self) -> int:
        """This peer's samples towards the next two global steps."""
        return self.local_samples_accumulated + (self._held or 0)

    def accumulate(self, samples: int) -> None:
        """Add a microbatch."""
        self.local_samples_accumulated += samples

    def hold(self) -> None:
        """Hold the accumulated samples for a round."""
        self._held, self.local_samples_accumulated = self.local_samples_accumulated, 0

    def take_back(self) -> None:
        """Add the held samples to those accumulated."""
        self._held, self.local_samples_accumulated = None, self.all_samples

    def drop_all(self) -> int:
        """Drop all samples; return their number."""
        lost, self._held, self.local_samples_accumulated = self.all_samples, None, 0
        return lost

    def reset_accumulated_grads_(self) -> None:
        """Drop the samples that are not held."""
        self.local_samples_accumulated = 0

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Take a step with the due samples."""
        yield
        if self._held is None:
            self.local_samples_accumulated = 0
        self._held = None

    def get_tensors(self) -> AbstractContextManager[list[RehearsedAverage]]:
        """Return the number of the newest average."""
        return nullcontext([self.average])

    def load_average(self, numbers: Sequence[RehearsedAverage]) -> None:
        """Load the number of an average that others have made."""
        [self.average] = numbers

    def forget_remainders(self) -> None:
        """Do nothing: no remainders are kept."""

    # rounds

    def size_in(self, averaging: Averaging) -> RoundBytes:  # noqa: ARG002 - a rehearsal changes no settings
        """Return the sizes in bytes of gradients and of their averages."""
        return self._bytes

    def change(self, averaging: Averaging) -> bool:  # noqa: ARG002
        """Return whether the gradients' encoding changes."""
        return False

    def take(self) -> list[Finding]:
        """Return the findings about other peers, of which the model makes none."""
        return []

    def want(self, wanted: Requirements) -> None:
        """Set the requirements for the next group."""
        self.wanted = wanted
        if self._round is not None and (seeker := self._round.seeker) is not None:
            self._world.groups.want(seeker, wanted)

    def load_accumulators_into_averager_(self) -> None:
        """Make this peer's own average, of which it is the only sender."""
        name, samples = self._device.name, self.due_samples
        self.newest = MetGroup.alone(self._world.groups.next_number(), name, samples, self._env.now)
        self.average = self.newest.number

    def schedule_step(self) -> RehearsedRound:
        """Start looking for a group, which may begin once the round is triggered."""
        self._round = round_ = RehearsedRound(self._env, self._given_up)
        self._waits.spawn(self._run(round_, (self.wanted.era, self.wanted.step)))
        return round_

    def step(self, *, weight: float, control: RehearsedRound, reset_accumulators: bool, wait: bool) -> None:
        """Trigger a round with this peer's samples."""
        del reset_accumulators, wait
        control.weight = float(weight)
        if control.seeker is not None:
            self._world.groups.begin(control.seeker, control.weight)

    def shutdown(self) -> None:
        """Leave the round, as everything ends with a peer's process."""
        if self._round is not None:
            self._round.cancel()

    async def _run(self, round_: RehearsedRound, position: tuple[int, int]) -> None:
        """Look for groups until one averages, or the round is cancelled."""
        groups = self._world.groups
        while not round_.done():
            round_.seeker = seeker = self._seeker(*position)
            groups.look(position, seeker)
            if round_.weight is not None:
                groups.begin(seeker, round_.weight)
            await until(seeker.runs | seeker.done | round_.arrived)
            self._waits.tell()
            result: Any = await until(seeker.done | round_.arrived)
            if round_.done():
                return
            result = seeker.done.value
            round_.began_allreduce |= bool(isinstance(result, MetGroup) or result.reducers)
            if isinstance(result, MetGroup):
                self._succeeded(round_, result)
            elif result.reducers:
                self._failed(result)
            self._waits.tell()

    def _succeeded(self, round_: RehearsedRound, met: MetGroup) -> None:
        self._deadline.succeeded(met.seconds)
        self._missed.round_ended()
        self.newest, self.average = met, met.number
        reduces = self._device.name in met.reducers
        round_.set_result(
            AveragedGroup(
                size=len(met.peers),
                samples=met.samples,
                averaged_bytes=round(met.averaged_bytes),
                weights=met.weights if reduces else {},
                counted=met.counted if reduces else {},
                attested=met.attested,
                seconds=met.seconds,
                traffic=met.traffic,
                lines=met.lines,
                peers=met.peers,
            )
        )

    def _failed(self, failed: FailedRound) -> None:
        self.failed_rounds += 1
        self._missed.round_ended(absent_of(failed.missed, failed.reducers | {self._device.name}))
        if not self._missed.current():
            self._deadline.failed()
        missed = ",".join(sorted(failed.missed))
        self._world.tell(self._device.name, "round failed", self.wanted.step, missed)

    def _given_up(self, round_: RehearsedRound) -> None:
        if round_.seeker is not None:
            self._world.groups.give_up(round_.seeker)

    def _seeker(self, era: int, step: int) -> Seeker:
        device = self._device
        compression, rank = self.averaging.code
        words = Declaration.model_construct(
            run="",
            era=era,
            step=step,
            compression=compression,
            powersgd_rank=rank,
            rate=self.bandwidth,
            takes_connections=device.is_reachable,
            patience_s=self._deadline.seconds,
            accused=[],
            missed=self._missed.newest(MOST_MISSED),
        )
        return Seeker(
            name=device.name,
            member=device.member or device.name,
            role=self._role,
            leads=device.is_reachable,
            words=words,
            wanted=self.wanted,
            course=self._course,
            grace=self._grace,
            done=self._env.event(),
            runs=self._env.event(),
            gone_on=lambda: self._hear(Heard((era, step), gone_on=True)),
        )
