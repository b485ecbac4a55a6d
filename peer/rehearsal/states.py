"""One peer's state in virtual time, represented by a number, and its transfers (`peer.swarm.transfers`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch

from peer.config.training import Compression
from peer.network.least_rate import PATIENCE_S
from peer.node.average_history import HELD_BYTES, Average, AverageHistory, Lack
from peer.node.donations import AT_ONCE, FOLLOWERS_AT_ONCE, Donation, Donations
from peer.node.states import DonatedState
from peer.progress.fingerprint import Sketch
from peer.rehearsal.scenario import KEEPER, Rehearsed
from peer.rehearsal.waits import VirtualWaits
from peer.rehearsal.world import World
from peer.swarm.transfers import MissedAverage

STATE_BYTES, CHECKPOINT_BYTES = 8, 12  # bytes per parameter value
LOOK_S = 10.0  # interval of checks during a download, below a donor's timeout for a slot


class RehearsedState:
    """A training state (`peer.swarm.training_state`), of which only the number is known."""

    shapes = all_shapes = ()

    def __init__(self, world: World) -> None:
        self._world = world
        self.number = self.step = self.era = self._average = 0
        self.voters: Collection[str] = ()
        self.lock: AbstractContextManager[None] = nullcontext()

    def sketch(self) -> Sketch:
        """Return the sketch of this state."""
        return _sketch_of(self.number)

    def sketch_of_other(self, donated: DonatedState) -> Sketch:
        """Return the sketch of another peer's state."""
        return _sketch_of(cast(int, donated.tensors))

    def adopt(self, donated: DonatedState) -> None:
        """Replace this state by another peer's."""
        self.number, self.era = cast(int, donated.tensors), donated.era
        self.set_step(donated.step, donated.voters)

    def load_gradients(self, averages: Iterable[torch.Tensor]) -> None:
        """Load the number of an average."""
        [average] = averages
        self._average = int(average)

    def advance(self, voters: Collection[str]) -> None:
        """Take a step with the loaded average."""
        self.number = self._world.state_after(self.number, self._average)
        self.set_step(self.step + 1, voters)

    def set_step(self, step: int, voters: Collection[str] = ()) -> None:
        """Set the number of completed global steps."""
        self.step, self.voters = step, voters

    def forget_moments(self) -> None:
        """Do nothing: there are none."""

    def scale_rates(self, scale: float) -> None:
        """Do nothing: there are none."""


def _sketch_of(state: int) -> Sketch:
    """Return a distinct sketch for a state's number."""
    angle = state * math.pi * (3 - math.sqrt(5))  # the golden angle, so no two points on the circle coincide
    return math.cos(angle), math.sin(angle)


class RehearsedTransfers:
    """One peer's downloads, and its slots for the downloads of others."""

    def __init__(self, world: World, device: Rehearsed, role: str, waits: VirtualWaits) -> None:
        self._world, self._waits, self._role = world, waits, role
        self.name, self._member = device.name, device.member or device.name
        self.is_downloading = False
        self._history = AverageHistory(HELD_BYTES * world.scenario.parameters)
        self._followers = Donations(waits.now, FOLLOWERS_AT_ONCE)
        self._takers = Donations(waits.now, AT_ONCE)

    async def state(self, shapes: Sequence[Any], refused: Sequence[str]) -> DonatedState | None:  # noqa: ARG002
        """Download the state of the first donor that gives one; None if there is none."""
        for donor in self._world.donors_for(self.name, self._role):
            if donor.name in refused:
                continue
            state, size = donor.state, STATE_BYTES * self._world.scenario.parameters
            donated = DonatedState(donor.name, state.step, state.era, tuple(state.voters), cast(Any, state.number))
            if await self._download(donor.transfers, donor.transfers._takers, size):
                return donated
        return None

    def state_judged(self, donated: DonatedState, fault: str | None) -> None:
        """Begin an empty history of averages if the state is taken."""
        if fault is None:
            self._history.begin(donated.era, donated.step)
            self._world.tell(self.name, "took the state", donated.step)

    async def average(self, era: int, step: int, shapes: Sequence[Any]) -> MissedAverage | Lack:  # noqa: ARG002
        """Download the average that leads from `step` to the next one from the keeper."""
        keeper = self._world.keeper
        if keeper is None or not self._world.can_reach(KEEPER, self.name):
            return Lack.SILENT
        found = keeper.transfers._history.after(era, step)
        if isinstance(found, Lack):
            return found
        if not await self._download(keeper.transfers, keeper.transfers._followers, self._world.missed_bytes):
            return Lack.BUSY
        return MissedAverage([found.encoded], found.voters)

    def keep(
        self,
        era: int,
        step: int,
        averages: Iterable[torch.Tensor],
        factors: Mapping[int, Any],  # noqa: ARG002
        compression: Compression,  # noqa: ARG002
        voters: Collection[str],
    ) -> None:
        """Store the average that led to `step`."""
        [average] = averages
        self._history.keep(era, step, Average(average.clone(), (self._world.missed_bytes,), tuple(voters)))

    async def checkpoint(self) -> bool:
        """Download a checkpoint from the coordinator; return whether it arrived."""
        size = self._world.scenario.parameters * CHECKPOINT_BYTES
        return await self._receive(size, KEEPER, lambda: True)

    async def _download(self, donor: RehearsedTransfers, places: Donations, size_bytes: int) -> bool:
        donation = places.begin(self._member, self.name)
        if donation is None:
            self._world.turned_away(donor.name)
            return False
        came = False
        try:
            came = await self._receive(size_bytes, donor.name, lambda: self._goes_on(donor, places, donation))
        finally:
            places.end(donation, is_whole=came)
        return came

    def _goes_on(self, donor: RehearsedTransfers, places: Donations, donation: Donation) -> bool:
        is_here = (peer := self._world.peer_at(donor.name)) is not None and peer.transfers is donor
        return is_here and places.goes_on(donation)

    async def _receive(self, size: int, sender: str, goes_on: Callable[[], bool]) -> bool:
        """Receive a number of bytes; return whether all arrived."""
        world, now, arrived = self._world, self._waits.now, futures.Future[None]()
        sizes = {(sender, "up"): size, (self.name, "down"): size}
        transfer = world.network.lines.send(sizes, lambda: arrived.set_result(None))
        silent_at = now() + PATIENCE_S
        self.is_downloading = True
        try:
            while not (arrived.done() or self._waits.is_interrupted) and goes_on():
                if world.can_reach(sender, self.name):
                    silent_at = now() + PATIENCE_S
                elif now() >= silent_at or world.troubles.are_apart(sender, self.name):
                    break
                await self._waits.news(LOOK_S, arrived)
        finally:
            self.is_downloading = False
            world.network.lines.stop(transfer)
        return arrived.done()
