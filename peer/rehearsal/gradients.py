"""One peer's gradients in virtual time, and the inside of its rounds."""

from __future__ import annotations

import asyncio

import torch

from peer.averaging.absences import Attendance
from peer.averaging.requirements import least_samples
from peer.averaging.rounds import AveragedGroup, PlannedRound, RoundError
from peer.config.training import Averaging
from peer.gradients.buffer import GradientBuffer
from peer.progress.view import SwarmCourse
from peer.reduction.attestation import DIGEST_BYTES
from peer.rehearsal.rounds import SHARES, FailedRound, MetGroup, Sender
from peer.rehearsal.world import World


class RehearsedGradients(GradientBuffer):
    """Real sums of a parameter with one value, and the sizes of the run's model; an average is a number."""

    newest: MetGroup  # the group that made the newest average

    def __init__(self, world: World, name: str) -> None:
        """Set up the gradients of a device."""
        super().__init__([torch.nn.Parameter(torch.zeros(1))], world.config.averaging)
        self._world, self._name = world, name

    def size_in(self, averaging: Averaging) -> int:
        """Return the bytes of gradients that a peer sends per round with these settings."""
        return self._world.scenario.gradient_bytes(averaging)

    def load(self) -> None:
        """Load this peer's own average, until a group makes another one."""
        super().load()
        number = self._world.rounds.next_number()
        self.averaged_by(MetGroup.alone(number, self._name, self.due_samples, self._world.now()))

    def averaged_by(self, met: MetGroup) -> None:
        """Load the average of a group."""
        self.newest = met
        self.load_average([torch.tensor([float(met.number)])])


class RehearsedReduction:
    """The inside of one peer's rounds (`peer.averaging.rounds.Exchange`), which takes its time on the lines."""

    values = SHARES

    def __init__(
        self, world: World, name: str, gradients: RehearsedGradients, course: SwarmCourse, attendance: Attendance
    ) -> None:
        """Set up a device's rounds; `course` provides the weight caps for its reduction."""
        self._world, self._name, self._gradients = world, name, gradients
        self._course, self._attendance = course, attendance
        self.size_bytes = gradients.size_in(gradients.averaging)

    def take_up(self, averaging: Averaging) -> None:
        """Do nothing: a rehearsal changes no settings."""

    async def average(self, round_: PlannedRound) -> AveragedGroup:
        """Average with a group. Raises `RoundError` if the round fails, or if this device lies by leaving it."""
        world, name = self._world, self._name
        if world.troubles.lies(name, "leaves"):
            raise RoundError("left")
        weight = world.troubles.named_by(name, round(round_.weight), "weight")
        outcome: asyncio.Future[MetGroup | FailedRound] = asyncio.get_running_loop().create_future()
        met = await world.rounds.average(
            round_.group, round_.plan, Sender(name, weight, self._course, round_.due_since, outcome)
        )
        missed = met.missed if isinstance(met, FailedRound) else frozenset[str]()
        are_named = self._attendance.round_ended(missed=missed, reducers=met.reducers - {name})
        round_.came_about = are_named and met.samples >= least_samples(round_.target)
        if isinstance(met, FailedRound):
            world.tell(name, "round failed", round_.position[1], ",".join(sorted(missed)))
            raise RoundError(f"missed {missed}")
        self._gradients.averaged_by(met)
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
            digest=met.number.to_bytes(DIGEST_BYTES, "big"),
        )
