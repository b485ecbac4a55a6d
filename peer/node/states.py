"""Transfer of the training state, and of missed averages, between peers.

A donor sends its state to a few peers at once (`peer.node.donations`); the others retry. A peer with
an earlier state downloads only the missed averages (`peer.node.average_history`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from hivemind.compression import CompressionInfo, RoleAdaptiveCompression
from hivemind.p2p import PeerID
from hivemind.proto.averaging_pb2 import DownloadData
from hivemind.utils import MSGPackSerializer
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming, split_for_streaming
from pydantic import BaseModel, ConfigDict, Field

from auth.swarm.authorizer import STATE_READERS
from auth.swarm.directory import PeerDirectory, while_admitted
from peer.network.least_rate import PATIENCE_S, at_least_rate
from peer.network.traffic import Traffic
from peer.node.average_history import Average, AverageHistory, Lack
from peer.node.donations import BROKEN_OFF_S, FOLLOWERS_AT_ONCE, Donations
from peer.protocol import MAX_ERA, MAX_STEP
from peer.protocol.history_pb2 import AverageAfter
from peer.reduction.compression import HALF_BYTES, ROOTS, decode, is_finite
from peer.transport.transport import Transport

logger = logging.getLogger(__name__)
STATE_OVERHEAD_BYTES = 1 << 20
MOST_VALUES = 4  # state values per parameter: itself and an optimizer's moments
QUICK_S, QUICK_DONORS = 1800.0, 3  # time limit in seconds of the first attempts, and their number
STATE_CODE = RoleAdaptiveCompression(optimizer=ROOTS)  # rounds the optimizer moments with this role
# serialized `TransferFacts`, the tensors' values one after another, and the shape and role of each tensor
Snapshot = tuple[bytes, torch.Tensor, Sequence[CompressionInfo]]


class TransferFacts(BaseModel):
    """What a donor says of the tensors that it sends."""

    model_config = ConfigDict(frozen=True, strict=True)

    step: Annotated[int, Field(ge=0, le=MAX_STEP)] = 0  # of the state, or to which an average leads
    era: Annotated[int, Field(ge=0, le=MAX_ERA)] = 0
    busy: bool = False  # the donor sends states to others now
    lack: Annotated[Lack | None, Field(strict=False)] = None  # the reason why there is no average


@dataclass(frozen=True)
class DonatedState:
    """A state as its donor sent it. Its size is limited, and its values are finite."""

    donor: str  # peer ID
    step: int
    era: int
    tensors: Sequence[torch.Tensor]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the tensors between processes as one, because each takes up a file descriptor."""
        values = torch.cat([tensor.float().flatten() for tensor in self.tensors])
        return _received, (self.donor, self.step, self.era, values, [tensor.size() for tensor in self.tensors])


@dataclass(frozen=True)
class StateWanted:
    """The trainer wants a state that none of these donors has given."""

    refused: Sequence[str] = ()


@dataclass(frozen=True)
class AverageWanted:
    """The trainer wants the average that leads from this step to the next one."""

    era: int
    step: int


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


def separate(values: torch.Tensor, shapes: Iterable[Sequence[int]]) -> list[torch.Tensor]:
    """Return tensors of these shapes that share the memory of `values`, which has as many values."""
    shapes = list(shapes)
    parts = torch.split(values, [math.prod(shape) for shape in shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


class StateService:
    """One peer's transfers of states and averages, as a donor and as a receiver."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        directory: PeerDirectory,
        *,
        donor_roles: frozenset[str],
        traffic: Traffic,
        snapshot: Callable[[], Awaitable[Snapshot]],
        parameters_bytes: int,
        moved: Callable[[], None],
        turned_away: Callable[[], None],
    ) -> None:
        """Set up transfers over streams whose names begin with `name`.

        `donor_roles`: the roles of the peers from which this peer takes states. `snapshot` copies
        the trainer's state. `moved` is called whenever a download progresses, and `turned_away`
        when a request for the state is rejected as busy.
        """
        self._transport, self._directory, self._donor_roles = transport, directory, donor_roles
        self._of_state, self._of_average = f"{name}.state", f"{name}.average"
        self._traffic, self._snapshot, self._parameters_bytes = traffic, snapshot, parameters_bytes
        self._moved, self._turned_away = moved, turned_away
        self._clock = asyncio.get_running_loop().time
        writes_checkpoints = "keeper" not in donor_roles  # only the keeper writes checkpoints
        self._donations = Donations(self._clock, after_break_s=BROKEN_OFF_S if writes_checkpoints else 0.0)
        self._following = Donations(self._clock, FOLLOWERS_AT_ONCE)
        self._history = AverageHistory()

    async def serve(self) -> None:
        """Let members download this peer's state, and the averages that it holds."""
        await self._transport.serve(self._of_state, self._give_state)
        await self._transport.serve(self._of_average, self._give_average)

    async def obey(self, order: StateOrder) -> DonatedState | list[torch.Tensor] | Lack | None:
        """Execute an order of the trainer; return what it wants."""
        match order:
            case StateWanted():
                return await self._find_state(order.refused)
            case AverageWanted():
                return await self._find_average(order.era, order.step)
            case AverageKept():
                self._history.keep(order.era, order.step, order.average.copy())
            case HistoryBegun():
                self._history.begin(order.era, order.step)
        return None

    async def _give_state(self, caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send the state to a few members at once, within the rate limit; reject others as busy."""
        peer = PeerID.from_base58(caller)
        if not await self._directory.admits(peer, STATE_READERS):  # checked before the state is copied
            return
        token = self._directory.token_of(peer)
        donation = None if token is None else self._donations.begin(token.member, token.device_id)
        if donation is None:
            self._turned_away()
            yield _only(TransferFacts(busy=True)).SerializeToString()
            return
        is_whole = False
        try:
            state = self._traffic.sending_state(_messages_of_state(await self._snapshot()))
            async with aclosing(while_admitted(self._directory, peer, STATE_READERS, state)) as messages:
                async for message in messages:
                    if not self._donations.goes_on(donation):
                        return
                    yield message.SerializeToString()
            is_whole = True
        finally:  # also runs when a reader disconnects, which closes this generator
            self._donations.end(donation, is_whole=is_whole)

    async def _give_average(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send the average of the first missed step to a member that fell behind."""
        peer = PeerID.from_base58(caller)
        if not await self._directory.admits(peer, STATE_READERS):
            return
        request = AverageAfter.FromString(await anext(requests))
        token = self._directory.token_of(peer)
        donation = None if token is None else self._following.begin(token.member, token.device_id)
        if donation is None:
            yield _only(TransferFacts(lack=Lack.BUSY)).SerializeToString()
            return
        try:
            found = self._history.after(request.era, request.step)
            if isinstance(found, Lack):
                yield _only(TransferFacts(lack=found)).SerializeToString()
                return
            average = self._traffic.sending_average(_messages_of_average(found, request.step + 1))
            async with aclosing(while_admitted(self._directory, peer, STATE_READERS, average)) as messages:
                async for message in messages:
                    if not self._following.goes_on(donation):
                        return
                    yield message.SerializeToString()
        finally:
            self._following.end(donation)

    async def _find_average(self, era: int, step: int) -> list[torch.Tensor] | Lack:
        """Ask the donors in turn until one responds."""
        request = AverageAfter(era=era, step=step).SerializeToString()
        for donor in await self._directory.with_role(self._donor_roles):
            limit = self._parameters_bytes + STATE_OVERHEAD_BYTES
            answer = await self._receive(donor.to_base58(), self._of_average, request, limit)
            if answer is None:
                continue
            facts, tensors = answer
            return facts.lack or tensors
        return Lack.SILENT

    async def _find_state(self, refused: Collection[str]) -> DonatedState | None:
        """Ask the donors in turn until one gives its state.

        The keeper's donors are trainers, which may be dishonest or take days at the minimum rate.
        They are therefore asked in random order, a few of them first with a short time limit.
        """
        donors = {donor.to_base58() for donor in await self._directory.with_role(self._donor_roles)}
        names = sorted(donors - {self._transport.peer_id, *refused})
        random.shuffle(names)
        may_lie = len(names) > 1 and "keeper" not in self._donor_roles
        quick = names[:QUICK_DONORS] if may_lie else []
        limit = MOST_VALUES * self._parameters_bytes + STATE_OVERHEAD_BYTES
        for name, most_s in [*((name, QUICK_S) for name in quick), *((name, None) for name in names)]:
            try:
                state = await asyncio.wait_for(self._receive(name, self._of_state, b"", limit), most_s)
            except asyncio.TimeoutError:
                logger.warning("the state of %s has not come within %s s", name, most_s)
                continue
            if state is not None and state[1]:
                facts, tensors = state
                return DonatedState(name, facts.step, facts.era, tensors)
        return None

    async def _receive(
        self, donor: str, name: str, request: bytes, limit: int
    ) -> tuple[TransferFacts, list[torch.Tensor]] | None:
        """Download a donor's response of at most `limit` bytes; None on failure or a busy donor."""
        facts: TransferFacts | None = None
        received = 0
        parts: list[Any] = []
        tensors: list[torch.Tensor] = []
        self._moved()
        try:
            async with aclosing(self._transport.stream(donor, name, _once(request))) as responses:
                in_time = aiter_with_timeout(_messages_in(responses), timeout=PATIENCE_S)
                messages = at_least_rate(in_time, DownloadData.ByteSize, self._clock)
                async for message in self._traffic.receiving(messages):
                    self._moved()
                    received += message.ByteSize()
                    if received > limit:
                        raise ValueError(f"what {donor} sends is larger than {limit} bytes")
                    if message.metadata:
                        facts = TransferFacts.model_validate(MSGPackSerializer.loads(message.metadata))
                        if facts.busy:
                            logger.info("%s gives to others now", donor)
                            return None
                    if message.tensor_part.dtype and parts:  # the first part of the next tensor
                        tensors.append(await _decoded(parts))
                        parts = []
                    if message.HasField("tensor_part"):
                        parts.append(message.tensor_part)
            if parts:
                tensors.append(await _decoded(parts))
        except Exception as error:  # noqa: BLE001 - fault boundary: after any error the next donor is asked
            logger.warning("%s could not be downloaded from: %r", donor, error)
            return None
        return None if facts is None or not all(map(is_finite, tensors)) else (facts, tensors)


def _received(donor: str, step: int, era: int, values: torch.Tensor, shapes: Sequence[Sequence[int]]) -> DonatedState:
    return DonatedState(donor, step, era, separate(values, shapes))


async def _once(request: bytes) -> AsyncIterator[bytes]:
    yield request


async def _messages_in(responses: AsyncIterator[bytes]) -> AsyncIterator[DownloadData]:
    async for response in responses:
        yield DownloadData.FromString(response)


def _only(facts: TransferFacts) -> DownloadData:
    return DownloadData(metadata=MSGPackSerializer.dumps(facts.model_dump(mode="json", exclude_defaults=True)))


async def _messages_of_state(snapshot: Snapshot) -> AsyncIterator[DownloadData]:
    """Yield a state's facts, then its tensors; each is encoded in a thread, because rounds go on meanwhile."""
    facts, values, infos = snapshot
    yield DownloadData(metadata=facts)
    for tensor, info in zip(separate(values, [info.descriptor.size for info in infos]), infos, strict=True):
        encoded = await asyncio.to_thread(STATE_CODE.compress, tensor, info, allow_inplace=False)
        for part in split_for_streaming(encoded):
            yield DownloadData(tensor_part=part)


async def _messages_of_average(average: Average, step: int) -> AsyncIterator[DownloadData]:
    yield _only(TransferFacts(step=step))
    for tensor in average.tensors():
        for part in split_for_streaming(tensor):
            yield DownloadData(tensor_part=part)


async def _decoded(parts: Sequence[Any]) -> torch.Tensor:
    tensor: torch.Tensor = await asyncio.to_thread(decode, combine_from_streaming(parts), ROOTS, HALF_BYTES)
    return tensor.float()  # before `is_finite`: a large float64 value would become infinite in the trainer's state
