"""Transfer of the training state, and of missed averages, between peers.

A donor sends its state to a few peers at once (`peer.node.donations`); the others retry. A peer with
an earlier state downloads only the missed averages (`peer.node.average_history`). Rounds go on in
the same event loop, so what takes long is done in threads.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from hivemind.compression import CompressionInfo, RoleAdaptiveCompression, TensorRole
from hivemind.proto.averaging_pb2 import DownloadData
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import aiter_with_timeout, as_aiter
from hivemind.utils.streaming import combine_from_streaming, split_for_streaming
from pydantic import BaseModel, ConfigDict, Field

from auth.swarm.authorizer import STATE_READERS
from auth.swarm.directory import PeerDirectory, while_admitted
from peer.network.least_rate import PATIENCE_S, at_least_rate
from peer.network.traffic import Traffic
from peer.node.average_history import HELD_BYTES, Average, AverageHistory, Lack
from peer.node.donations import BROKEN_OFF_S, FOLLOWERS_AT_ONCE, Donations
from peer.node.quorum import MOST_PEERS
from peer.protocol import MAX_ERA, MAX_STEP
from peer.protocol.history_pb2 import AverageAfter
from peer.reduction.compression import ROOTS, decode, is_finite
from peer.reduction.findings import MAX_ID_CHARS
from peer.transport.transport import Transport

logger = logging.getLogger(__name__)
COPY_S = 60.0  # longest wait for the trainer's copy of its state
MOST_BYTES = 4  # per received value
OVERHEAD_BYTES = 1 << 20
FACTORS = 2  # tensors that PowerSGD makes of a matrix
QUICK_S, QUICK_DONORS = 1800.0, 3  # time limit in seconds of the first attempts, and their number
_PeerId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]
STATE_CODE = RoleAdaptiveCompression(optimizer=ROOTS)  # rounds the optimizer moments with this role


class TransferFacts(BaseModel):
    """A donor's statement about the tensors of a transfer."""

    model_config = ConfigDict(frozen=True, strict=True)

    step: Annotated[int, Field(ge=0, le=MAX_STEP)] = 0  # of the state, or to which an average leads
    era: Annotated[int, Field(ge=0, le=MAX_ERA)] = 0
    busy: bool = False  # the donor sends states to others now
    lack: Annotated[Lack | None, Field(strict=False)] = None  # the reason why there is no average
    voters: Annotated[tuple[_PeerId, ...], Field(max_length=MOST_PEERS, strict=False)] = ()  # peers that took the step


@dataclass(frozen=True)
class JoinedTensors:
    """Tensors that processes pass as one, because each takes up a file descriptor."""

    values: torch.Tensor  # (values,) float32 in shared memory: those of the first tensor, of the second, ...
    shapes: Sequence[torch.Size]

    @classmethod
    def room_for(cls, shapes: Sequence[torch.Size]) -> JoinedTensors:
        """Allocate tensors of these shapes."""
        values: Any = torch.empty(sum(map(math.prod, shapes)), dtype=torch.float32)
        return cls(values.share_memory_(), shapes)

    @classmethod
    def join(cls, tensors: list[torch.Tensor]) -> JoinedTensors:
        """Move tensors out of a list, one after another, so that they never take twice their memory."""
        joined = cls.room_for([tensor.shape for tensor in tensors])
        tensors.reverse()
        for place in joined.separate():
            place.copy_(tensors.pop())
        return joined

    def separate(self) -> list[torch.Tensor]:
        """Return the tensors, which share the memory of `values`."""
        parts = torch.split(self.values, [math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class StateCopy:
    """A copy of the trainer's state, taken between global steps."""

    step: int
    era: int
    voters: tuple[str, ...]  # IDs of the peers that took the newest step together; empty: unknown
    tensors: JoinedTensors
    roles: Sequence[TensorRole]  # of the tensors; a role selects a tensor's encoding


@dataclass(frozen=True)
class DonatedState:
    """A state as its donor sent it: it has the wanted shapes and finite values."""

    donor: str  # peer ID
    step: int
    era: int
    voters: tuple[str, ...]  # as in `StateCopy`
    tensors: JoinedTensors


@dataclass(frozen=True)
class StateWanted:
    """The trainer wants a state with tensors of these shapes, from other donors than the refused ones."""

    shapes: Sequence[torch.Size]
    refused: Sequence[str] = ()


@dataclass(frozen=True)
class AverageWanted:
    """The trainer wants the average that leads from this step to the next one."""

    era: int
    step: int
    shapes: Sequence[torch.Size]  # of the parameters; PowerSGD's factors have others


@dataclass(frozen=True)
class HistoryBegun:
    """The trainer has taken another peer's state, or a checkpoint's."""

    era: int
    step: int


@dataclass(frozen=True)
class AverageKept:
    """The trainer has taken a step with this average, which others may miss."""

    era: int
    step: int
    average: Average


StateOrder = StateWanted | AverageWanted | HistoryBegun | AverageKept


class StateService:
    """One peer's transfers of states and averages, as a donor and as a receiver."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        directory: PeerDirectory,
        *,
        values: int,
        donor_roles: frozenset[str],
        traffic: Traffic,
        copy: Callable[[], Awaitable[StateCopy]],
        moved: Callable[[], None],
        turned_away: Callable[[], None],
    ) -> None:
        """Set up transfers over streams whose names begin with `name`.

        `values`: of the model. `donor_roles`: the roles of the peers from which this peer takes states. `copy` lets the
        trainer copy its state. `moved` is called whenever a download progresses, and `turned_away`
        when a request for the state is rejected as busy.
        """
        self._transport, self._directory, self._donor_roles = transport, directory, donor_roles
        self._of_state, self._of_average = f"{name}.state", f"{name}.average"
        self._traffic, self._copy, self._moved, self._turned_away = traffic, copy, moved, turned_away
        self._copying: asyncio.Future[StateCopy] | None = None
        self._clock = asyncio.get_running_loop().time
        is_keeper = "keeper" not in donor_roles  # it takes states from trainers, and writes checkpoints
        self._readers: Collection[str] = STATE_READERS if is_keeper else frozenset({"keeper"})
        self._donations = Donations(self._clock, after_break_s=BROKEN_OFF_S if is_keeper else 0.0)
        self._following = Donations(self._clock, FOLLOWERS_AT_ONCE)
        self._history, self._keeping = AverageHistory(HELD_BYTES * values), asyncio.Lock()

    async def serve(self) -> None:
        """Let members download this peer's state, and the averages that it holds."""
        await self._transport.serve(self._of_state, self._give_state)
        await self._transport.serve(self._of_average, self._give_average)

    async def obey(self, order: StateOrder) -> DonatedState | tuple[JoinedTensors, tuple[str, ...]] | Lack | None:
        """Execute an order of the trainer; return what it wants."""
        match order:
            case StateWanted():
                return await self._find_state(order)
            case AverageWanted():
                return await self._find_average(order)
            case AverageKept():
                async with self._keeping:  # in the order of the steps
                    average = await asyncio.to_thread(order.average.copy)
                    self._history.keep(order.era, order.step, average)
            case HistoryBegun():
                async with self._keeping:
                    self._history.begin(order.era, order.step)
        return None

    async def _give_state(self, caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send the state to a few members at once, within the rate limit; reject others as busy."""
        if not await self._directory.admits(caller, self._readers):  # checked before the state is copied
            return
        token = self._directory.token_of(caller)
        donation = None if token is None else self._donations.begin(token.member, token.device_id, _stop())
        if donation is None:
            self._turned_away()
            yield _only(TransferFacts(busy=True)).SerializeToString()
            return
        copy, is_whole = None, False
        donation.moved_at = math.inf  # while the donor copies its state, a reader cannot stall
        try:
            copy = await self._copied()
            state = self._traffic.sending_state(_messages_of_state(copy))
            async with aclosing(while_admitted(self._directory, caller, self._readers, state)) as messages:
                async for message in messages:
                    self._donations.goes_on(donation)
                    yield message.SerializeToString()
            is_whole = True
        finally:  # also runs when a reader disconnects, which closes this generator
            self._donations.end(donation, is_whole=is_whole or copy is None)

    async def _copied(self) -> StateCopy:
        """Return a copy of the trainer's state, the same to all that wait for one.

        Raises `asyncio.TimeoutError` if the trainer takes too long.
        """
        if self._copying is None:
            self._copying = asyncio.ensure_future(self._copy())
            self._copying.add_done_callback(self._has_copied)
        return await asyncio.wait_for(asyncio.shield(self._copying), COPY_S)

    def _has_copied(self, copying: asyncio.Future[StateCopy]) -> None:
        self._copying = None
        if not copying.cancelled() and copying.exception() is not None:
            logger.warning("the state could not be copied: %r", copying.exception())

    async def _give_average(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send the average of the first missed step to a member that fell behind."""
        if not await self._directory.admits(caller, STATE_READERS):
            return
        request = AverageAfter.FromString(await asyncio.wait_for(anext(requests, b""), PATIENCE_S))
        token = self._directory.token_of(caller)
        donation = None if token is None else self._following.begin(token.member, token.device_id, _stop())
        if donation is None:
            yield _only(TransferFacts(lack=Lack.BUSY)).SerializeToString()
            return
        try:
            found = self._history.after(request.era, request.step)
            if isinstance(found, Lack):
                yield _only(TransferFacts(lack=found)).SerializeToString()
                return
            average = self._traffic.sending_average(_messages_of_average(found, request.step + 1))
            async with aclosing(while_admitted(self._directory, caller, STATE_READERS, average)) as messages:
                async for message in messages:
                    self._following.goes_on(donation)
                    yield message.SerializeToString()
        finally:
            self._following.end(donation)

    async def _find_average(self, wanted: AverageWanted) -> tuple[JoinedTensors, tuple[str, ...]] | Lack:
        """Ask the donors in turn until one responds; return an average and the peers that have averaged."""
        request = AverageAfter(era=wanted.era, step=wanted.step).SerializeToString()
        values, tensors = sum(map(math.prod, wanted.shapes)), FACTORS * len(wanted.shapes)
        for donor in await self._directory.with_role(self._donor_roles):
            answer = await self._receive(donor, self._of_average, request, values, tensors)
            if answer is not None:
                facts, received = answer
                if facts.lack is not None:
                    return facts.lack
                return await asyncio.to_thread(JoinedTensors.join, received), facts.voters
        return Lack.SILENT

    async def _find_state(self, wanted: StateWanted) -> DonatedState | None:
        """Ask the donors in turn until one gives a state of the wanted shapes.

        The keeper's donors are trainers, which may be dishonest or take days at the minimum rate.
        They are therefore asked in random order, a few of them first with a short time limit.
        """
        donors = await self._directory.with_role(self._donor_roles)
        names = sorted(set(donors) - {self._transport.peer_id, *wanted.refused})
        random.shuffle(names)
        may_lie = len(names) > 1 and "keeper" not in self._donor_roles
        quick = names[:QUICK_DONORS] if may_lie else []
        for name, most_s in [*((name, QUICK_S) for name in quick), *((name, None) for name in names)]:
            try:
                state = await asyncio.wait_for(self._state_of(name, wanted.shapes), most_s)
            except asyncio.TimeoutError:
                logger.warning("the state of %s has not come within %s s", name, most_s)
                continue
            if state is not None:
                return state
        return None

    async def _state_of(self, donor: str, shapes: Sequence[torch.Size]) -> DonatedState | None:
        answer = await self._receive(donor, self._of_state, b"", sum(map(math.prod, shapes)), len(shapes))
        if answer is None:
            return None
        facts, tensors = answer
        if [tensor.shape for tensor in tensors] != list(shapes):
            logger.warning("the state of %s has other tensors than this peer's: not taken", donor)
            return None
        joined = await asyncio.to_thread(JoinedTensors.join, tensors)
        return DonatedState(donor, facts.step, facts.era, facts.voters, joined)

    async def _receive(
        self, donor: str, name: str, request: bytes, most_values: int, most_tensors: int
    ) -> tuple[TransferFacts, list[torch.Tensor]] | None:
        """Download a donor's finite tensors, at most so many; None on failure or a busy donor."""
        facts: TransferFacts | None = None
        limit, received, values = MOST_BYTES * most_values + OVERHEAD_BYTES, 0, 0
        parts: list[Any] = []
        tensors: list[torch.Tensor] = []
        self._moved()
        try:
            async with aclosing(self._transport.stream(donor, name, as_aiter(request))) as responses:
                read = (DownloadData.FromString(response) async for response in responses)
                in_time = aiter_with_timeout(read, timeout=PATIENCE_S)
                messages = at_least_rate(in_time, DownloadData.ByteSize, self._clock)
                async for message in self._traffic.receiving(messages):
                    self._moved()
                    received += message.ByteSize()
                    if message.metadata:
                        facts = TransferFacts.model_validate(MSGPackSerializer.loads(message.metadata))
                        if facts.busy:
                            logger.info("%s gives to others now", donor)
                            return None
                    if message.tensor_part.dtype and parts:  # the first part of the next tensor
                        tensors.append(await asyncio.to_thread(_decoded, parts))
                        parts = []
                    if message.HasField("tensor_part"):
                        values += 0 if parts else math.prod(map(abs, message.tensor_part.size))
                        parts.append(message.tensor_part)
                    if received > limit or values > most_values or len(tensors) + bool(parts) > most_tensors:
                        raise ValueError("it sends more than this peer's model has")
            if parts:
                tensors.append(await asyncio.to_thread(_decoded, parts))
        except Exception as error:  # noqa: BLE001 - fault boundary: after any error the next donor is asked
            logger.warning("%s could not be downloaded from: %r", donor, error)
            return None
        return None if facts is None else (facts, tensors)


def _stop() -> Callable[[], object]:
    """Return a function that ends the running handler, also while it waits for its reader."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancel


def _only(facts: TransferFacts) -> DownloadData:
    return DownloadData(metadata=MSGPackSerializer.dumps(facts.model_dump(mode="json", exclude_defaults=True)))


async def _messages_of_state(state: StateCopy) -> AsyncIterator[DownloadData]:
    yield _only(TransferFacts(step=state.step, era=state.era, voters=state.voters))
    for tensor, role in zip(state.tensors.separate(), state.roles, strict=True):
        info = CompressionInfo.from_tensor(tensor, role=role)
        for part in split_for_streaming(await asyncio.to_thread(STATE_CODE.compress, tensor, info)):
            yield DownloadData(tensor_part=part)


async def _messages_of_average(average: Average, step: int) -> AsyncIterator[DownloadData]:
    yield _only(TransferFacts(step=step, voters=average.voters))
    tensors = average.tensors()
    while (tensor := await asyncio.to_thread(next, tensors, None)) is not None:
        for part in split_for_streaming(tensor):
            yield DownloadData(tensor_part=part)


def _decoded(parts: Sequence[Any]) -> torch.Tensor:
    """Decode a tensor in 32 bits. Raises `ValueError` if it is malformed or not finite."""
    tensor = decode(combine_from_streaming(parts), ROOTS).float()
    if not is_finite(tensor):
        raise ValueError("a tensor is not finite")
    return tensor
