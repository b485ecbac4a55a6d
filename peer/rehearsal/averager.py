"""One peer's averager in virtual time: samples instead of gradients (`peer.averaging.averager`).

It meets others as a real one does (`peer.averaging.meetings`). Its rounds pass in the model of
`peer.rehearsal.rounds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from hivemind.averaging.control import AveragingStage

from auth.tokens import AccessToken
from peer.averaging.absences import Absences, absent_of
from peer.averaging.averager import MISSED_ROUNDS, AveragedGroup
from peer.averaging.declarations import MOST_MISSED, Declaration, DeclaredGroup
from peer.averaging.meetings import BEGIN, Heard, Meetings, Requirements, UnconfirmedAverageError, count_word
from peer.averaging.rounds import RoundDeadline
from peer.config.training import Averaging
from peer.progress.records import PeerRecord
from peer.progress.view import SwarmCourse
from peer.reduction.attestation import DIGEST_BYTES
from peer.reduction.findings import Finding
from peer.reduction.sizes import RoundBytes
from peer.rehearsal.members import signature, verify
from peer.rehearsal.rounds import FailedRound, MetGroup, RoundPlan, Sender
from peer.rehearsal.scenario import Rehearsed
from peer.rehearsal.waits import VirtualWaits
from peer.rehearsal.world import World
from peer.transport.transport import Transport

RehearsedAverage = int  # number of an average
FALSE_COUNTS = 0.5  # share of its followers to which a lying leader says that the batch is full, and nothing more


class RehearsedRound(futures.Future[AveragedGroup]):
    """One peer's search for a group and its round (hivemind's `StepControl`)."""

    def __init__(self) -> None:
        super().__init__()
        self._triggered, self._stage = asyncio.Event(), AveragingStage.LOOKING_FOR_GROUP
        self.searching: asyncio.Task[None] | None = None
        self.weight = 0.0  # this peer's samples, once it averages
        self.triggered_at = 0.0  # time at which this peer began to average
        self.began_allreduce = False

    @property
    def triggered(self) -> bool:
        """Whether this peer has begun to average."""
        return self._triggered.is_set()

    def trigger(self, weight: float, now: float) -> None:
        """Begin to average."""
        self.weight, self.triggered_at = weight, now
        self._triggered.set()

    async def wait_for_trigger(self) -> None:
        """Wait until this peer averages."""
        await self._triggered.wait()

    @property
    def stage(self) -> AveragingStage:
        """The stage of the search or round."""
        return self._stage

    @stage.setter
    def stage(self, stage: AveragingStage) -> None:
        self._stage = stage
        self.began_allreduce |= stage is AveragingStage.RUNNING_ALLREDUCE

    def cancel(self) -> bool:
        """Give up the search or round."""
        is_cancelled = super().cancel()
        if is_cancelled and self.searching is not None:
            self.searching.cancel()
        return is_cancelled


class RehearsedAverager:
    """The part of `SwarmGradientAverager` that a peer's moves use."""

    factors: dict[int, Any] = {}  # noqa: RUF012 - PowerSGD's factors are not rehearsed
    turned_away = 0

    def __init__(
        self,
        world: World,
        device: Rehearsed,
        transport: Transport,
        course: SwarmCourse,
        waits: VirtualWaits,
        hear: Callable[[Heard], None],
    ) -> None:
        """Set up the averager of a device's peer; `course` provides the weight caps for its reduction.

        `hear` processes the messages of the leader and the followers.
        """
        self._world, self._device, self._course, self._waits, self._hear = world, device, course, waits, hear
        self._transport, self._declared, self._deceived = transport, b"", dict[str, bytes]()
        self.averaging = world.config.averaging
        self._bytes = world.scenario.round_bytes(self.averaging)
        self._deadline = RoundDeadline(self.averaging.averaging_timeout_s)
        self._missed = Absences(free=0, first_rounds=MISSED_ROUNDS)
        members, sign = world.members, partial(signature, device.name)
        self.meetings = Meetings(transport, "meet", members, members.opened, sign, self._deliver, verify)
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
        """Set the requirements for the next group; a device that lies reports other samples to its leader."""
        if wanted == self.wanted:
            return
        self.wanted = wanted
        if wanted.report and self._world.troubles.lies(self._device.name, "claims", "weight"):
            told = self._world.as_told(self._device.name, PeerRecord.read_report(wanted.report))
            wanted = replace(wanted, report=told.report())
        self.meetings.want(wanted)

    async def serve(self) -> None:
        """Let other peers follow this one."""
        await self._transport.serve("meet", self._welcome)

    async def _welcome(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Lead a follower; a device that lies counts a full batch, or begins with all that have ever followed it."""
        name = self._device.name
        if self._world.troubles.lies(name, "leads"):
            self._deceived[caller] = await anext(requests, b"")
            if self._world.rng.random() < FALSE_COUNTS:
                yield count_word(self._world.target, 0.0)
                await asyncio.Event().wait()
            group = self._deceived | {name: self._declared}
            yield BEGIN + DeclaredGroup(caller.encode(), tuple(group), tuple(group.values())).message()
        else:
            async with aclosing(self.meetings.welcome(caller, requests)) as words:
                async for word in words:
                    yield word

    def _deliver(self, heard: Heard) -> bool:
        if self._waits.is_stopped:  # though its timers run
            return False
        if not self._waits.is_dead:
            self._hear(heard)
            self._waits.tell()
        return True

    def load_accumulators_into_averager_(self) -> None:
        """Make this peer's own average, of which it is the only sender."""
        name, samples = self._device.name, self.due_samples
        self.newest = MetGroup.alone(self._world.rounds.next_number(), name, samples, self._waits.now())
        self.average = self.newest.number

    def schedule_step(self) -> RehearsedRound:
        """Start looking for a group, which may begin once the round is triggered."""
        self._round = round_ = RehearsedRound()
        round_.searching = self._waits.spawn(self._run(round_))
        return round_

    def step(self, *, weight: float, control: RehearsedRound, reset_accumulators: bool, wait: bool) -> None:
        """Trigger a round with this peer's samples."""
        del reset_accumulators, wait
        control.trigger(float(weight), self._waits.now())

    def shutdown(self) -> None:
        """Leave the round, as everything ends with a peer's process."""
        if self._round is not None:
            self._round.cancel()

    async def _run(self, round_: RehearsedRound) -> None:
        """Look for groups until one averages, or the round is cancelled (`SwarmGradientAverager._step`)."""
        era, step = self.wanted.position
        while not round_.done():
            round_.stage = AveragingStage.LOOKING_FOR_GROUP
            self._declared = self._declare(era, step)
            self.meetings.declare((era, step), self._declared)
            group = await self.meetings.look_for_group(round_)
            round_.stage = AveragingStage.AWAITING_TRIGGER
            self._waits.tell()
            await round_.wait_for_trigger()
            round_.stage = AveragingStage.RUNNING_ALLREDUCE
            try:
                averaged = await self._average(round_, group)
            except UnconfirmedAverageError as error:
                self._failed(is_void=True)
                round_.set_exception(error)
                return
            if averaged is not None:
                round_.set_result(averaged)

    async def _average(self, round_: RehearsedRound, group: DeclaredGroup) -> AveragedGroup | None:
        """Average with a group; return None if that fails (`BalancedRounds`)."""
        world, name = self._world, self._device.name
        tokens = [token for peer in group.peers if (token := world.members.token_of(peer)) is not None]
        try:
            said = self._said_in(group, tokens)
        except ValueError as error:
            self.meetings.distrust_leader(str(error))
            return None
        if not self.wanted.quorum.is_in(group.peers) or world.troubles.lies(name, "leaves"):
            self.meetings.group_ended(came_about=False)
            return None
        plan = RoundPlan.of(group.peers, tokens, said, self._bytes)
        plan = replace(plan, patience_s=self._deadline.bounded(plan.patience_s))
        self.meetings.round_began(self._waits.now() + plan.patience_s)
        weight = world.troubles.named_by(name, round(round_.weight), "weight")
        outcome: asyncio.Future[MetGroup | FailedRound] = asyncio.get_running_loop().create_future()
        sender = Sender(name, weight, self._course, round_.triggered_at, outcome)
        met = await world.rounds.average(group.group_id, plan, sender)
        missed = met.missed if isinstance(met, FailedRound) else frozenset[str]()
        absent, is_full = absent_of(missed, met.reducers | {name}), met.samples >= self.wanted.target
        self._missed.round_ended(absent)
        self.meetings.group_ended(came_about=is_full and absent == missed)
        if isinstance(met, FailedRound):
            self._failed(missed)
            return None
        if is_full:
            round_.stage = AveragingStage.FINISHED
            await self.meetings.confirm(met.number.to_bytes(DIGEST_BYTES, "big"))
        self._deadline.succeeded(met.seconds)
        self.newest, self.average = met, met.number
        reduces = name in met.reducers
        return AveragedGroup(
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

    def _said_in(self, group: DeclaredGroup, tokens: Sequence[AccessToken]) -> list[Declaration]:
        """Read a group's declarations. Raises `ValueError` if one is too old, or this peer's has been changed."""
        said = list(map(self._world.members.opened, group.declared, tokens))
        if group.declared[group.peers.index(self._device.name)] != self._declared:
            raise ValueError("the leader changed what this peer had said of itself")
        if any(each.position != self.wanted.position for each in said):
            raise ValueError("The declaration is for another step.")
        return said

    def _failed(self, missed: frozenset[str] = frozenset(), *, is_void: bool = False) -> None:
        self.failed_rounds += 1
        self.meetings.round_failed()
        if not (is_void or self._missed.current()):
            self._deadline.failed()
        self._world.tell(self._device.name, "round failed", self.wanted.step, ",".join(sorted(missed)))

    def _declare(self, era: int, step: int) -> bytes:
        """Return a stand-in for this peer's signed declaration."""
        compression, rank = self.averaging.code
        return self._world.members.declare(
            self._device.name,
            Declaration.model_construct(
                run="",
                era=era,
                step=step,
                compression=compression,
                powersgd_rank=rank,
                rate=self.bandwidth,
                takes_connections=self._device.is_reachable,
                patience_s=self._deadline.seconds,
                accused=[],
                missed=self._missed.newest(MOST_MISSED),
            ),
        )
