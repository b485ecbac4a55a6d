"""The averagers of the swarm: hivemind's, made exact and strict, for members only.

hivemind's all-reduce returns *differences* to each sender, compressed, so that every peer ends with slightly other
numbers, and where a reducer failed it silently leaves a peer's own part in place: peers drift apart. Here a reducer
returns the average itself, every member of a group (the reducer included) takes the same bits, and a round that misses
any part fails.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing as mp
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.averager import DecentralizedAverager
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.partition import BannedException
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import nested_flatten
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor, as_aiter, attach_event_on_finished, azip
from hivemind.utils.streaming import combine_from_streaming

from auth.swarm_auth import AuthorizedAverager, SwarmAccess

logger = logging.getLogger(__name__)
GROUP_POLL_S = 0.2
STATE_OVERHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class AveragedGroup:
    """What one successful round averaged."""

    size: int  # peers in the group
    samples: int  # the senders' total weight; where one was lost on the way, of the part that had least
    averaged_bytes: int  # that others sent to this peer to be averaged


class ExactAllReduce(AllReduceRunner):
    """Butterfly all-reduce in which all members receive identical averages."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._weights: dict[int, float] = {}  # by sender's index, of what this peer reduces
        self.received_bytes = 0  # to be reduced, from others
        self.least_weight = float("inf")  # the total weight behind the average of any part, as its reducer says

    @property
    def missing_values(self) -> int:
        """How many values did not come back averaged."""
        return int(self.tensor_part_container.failed_size)

    def _reduced_weight(self) -> float:
        """Total weight of the senders in what this peer reduces; they all name it with each part."""
        banned = {self.sender_peer_ids.index(peer) for peer in self.banned_senders}
        return sum(weight for index, weight in self._weights.items() if index not in banned)

    async def _reduce_own_parts(self, peer_index: int) -> None:
        sender_index = self.sender_peer_ids.index(self.peer_id)
        self._weights[sender_index] = self.weight
        infos = [info for _, info in self.tensor_part_container._input_parts_by_peer[peer_index]]
        for part_index, (part, info) in enumerate(zip(self.parts_for_local_averaging, infos, strict=True)):
            average = await self.tensor_part_reducer.accumulate_part(sender_index, part_index, part, weight=self.weight)
            self.least_weight = min(self.least_weight, self._reduced_weight())
            # the same rounding as everybody else's copy went through
            wire = self.tensor_part_container.compression.compress(average, info, allow_inplace=False)
            self.tensor_part_container.register_processed_part(peer_index, part_index, deserialize_torch_tensor(wire))

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        """Send this peer's parts to one reducer and take the averages it returns."""
        peer_index = self.ordered_peer_ids.index(peer_id)
        if peer_id == self.peer_id:
            await self._reduce_own_parts(peer_index)
            return
        container = self.tensor_part_container
        done_sending, has_all = asyncio.Event(), asyncio.Event()
        parts = attach_event_on_finished(self._generate_input_for_peer(peer_index), done_sending)
        try:
            stream = await self._get_peer_stub(peer_id).rpc_aggregate_part(_held_open(parts, has_all))
            if self.should_delay_results(self.peer_id):
                await done_sending.wait()
            part_index, expected = 0, container.num_parts_by_peer[peer_index]
            answers = aiter_with_timeout(stream, self.reducer_timeout)
            async for average, weight in amap_in_executor(_averaged_part, answers, max_prefetch=container.prefetch):
                asked = container._input_parts_by_peer[peer_index]
                if part_index >= expected or average.shape != asked[part_index][0].shape:
                    raise AllreduceException(f"{peer_id} returned parts that were not asked for")
                container.register_processed_part(peer_index, part_index, average)
                self.least_weight = min(self.least_weight, weight)
                part_index += 1
                if part_index == expected:
                    has_all.set()
            if part_index != expected:
                raise AllreduceException(f"{peer_id} returned {part_index} of {expected} parts")
        except BaseException:
            container.register_failed_reducer(peer_index)
            raise

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Add one sender's parts to the sums and answer each with the average."""
        part_index = 0
        try:
            async for part, weight, compression, size in amap_in_executor(
                lambda message: (
                    deserialize_torch_tensor(message.tensor_part),
                    message.weight,
                    message.tensor_part.compression,
                    len(message.tensor_part.buffer),
                ),
                stream,
                max_prefetch=self.tensor_part_container.prefetch,
            ):
                self._weights[sender_index] = weight
                self.received_bytes += size
                try:
                    average = await self.tensor_part_reducer.accumulate_part(
                        sender_index, part_index, part, weight=weight
                    )
                except BannedException:
                    break
                part_index += 1
                wire = serialize_torch_tensor(average, compression)
                yield averaging_pb2.AveragingData(
                    code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=self._reduced_weight()
                )
        finally:
            if part_index != self.tensor_part_reducer.num_parts:
                await self._ban_sender(self.sender_peer_ids[sender_index])


async def _held_open(
    parts: AsyncIterator[averaging_pb2.AveragingData], has_all: asyncio.Event
) -> AsyncIterator[averaging_pb2.AveragingData]:
    """The parts for a reducer, and no end before all of its answers are here.

    Who answers closes the stream at its end, and what is still on its way then may be lost with it.
    """
    async for part in parts:
        yield part
    await has_all.wait()


def _averaged_part(message: averaging_pb2.AveragingData) -> tuple[torch.Tensor, float]:
    """The average of one part and the total weight behind it."""
    if message.code != averaging_pb2.AVERAGED_PART:
        raise AllreduceException(f"reducer answered {averaging_pb2.MessageCode.Name(message.code)}")
    return deserialize_torch_tensor(message.tensor_part), message.weight


class SwarmGradientAverager(AuthorizedAverager, GradientAverager):
    """Accumulates gradients in `.grad` (sums over samples) and averages them over the swarm, weighted by samples."""

    def __init__(self, *args: Any, access: SwarmAccess, **kwargs: Any) -> None:
        self.access = access
        self._required_group_size = mp.Value("i", 2)
        self._failed_rounds = mp.Value("i", 0)
        self._averaged_weight, self._received_bytes = 0.0, 0
        super().__init__(*args, reuse_grad_buffers=True, allow_state_sharing=False, **kwargs)

    @property
    def required_group_size(self) -> int:
        """A group is begun only with this many peers; may change while one is being looked for."""
        return int(self._required_group_size.value)

    @required_group_size.setter
    def required_group_size(self, size: int) -> None:
        self._required_group_size.value = max(2, size)

    @property
    def failed_rounds(self) -> int:
        """How many rounds of averaging began and did not bring every value; hivemind tries again by itself."""
        return int(self._failed_rounds.value)

    @torch.no_grad()
    def load_accumulators_into_averager_(self) -> None:
        """Put the mean gradient over this peer's samples (zero without samples) into the averaged tensors."""
        scale = 1.0 / self.local_samples_accumulated if self.local_samples_accumulated else 0.0
        with self.get_tensors() as averaged:
            for gradient, target in zip(self._grad_accumulators(), averaged, strict=True):
                target.copy_(gradient).mul_(scale)

    async def _step(self, **kwargs: Any) -> None:
        async def follow_required_size() -> None:
            while True:
                self._matchmaking.min_group_size = self.required_group_size
                await asyncio.sleep(GROUP_POLL_S)

        follower = asyncio.create_task(follow_required_size())
        try:
            await super()._step(**kwargs)
        finally:
            follower.cancel()

    async def _aggregate_with_group(self, group_info: GroupInfo, *args: Any, **kwargs: Any) -> AveragedGroup:
        await super()._aggregate_with_group(group_info, *args, **kwargs)
        return AveragedGroup(
            size=group_info.group_size, samples=round(self._averaged_weight), averaged_bytes=self._received_bytes
        )

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs: Any
    ) -> None:
        """Average in place; raises `AllreduceException` unless every value of every tensor came back finite."""
        group_id = group_info.group_id if group_id is None else group_id
        runner = ExactAllReduce(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group_id,
            ordered_peer_ids=group_info.peer_ids,
            **kwargs,
        )
        self._running_groups[group_id].set_result(runner)
        try:
            await _take_averages(runner, tensors)
        except AllreduceException:
            self._failed_rounds.value += 1
            raise
        self._averaged_weight, self._received_bytes = runner.least_weight, runner.received_bytes


async def _take_averages(runner: ExactAllReduce, tensors: Sequence[torch.Tensor]) -> None:
    """Run the round and put its averages in place; raises `AllreduceException` if a value is missing or not finite."""
    async for tensor, average in azip(as_aiter(*tensors), runner):
        tensor.copy_(average)
    if runner.missing_values:
        raise AllreduceException(f"{runner.missing_values} values came back unaveraged")
    if not (math.isfinite(runner.least_weight) and all(map(_finite, tensors))):
        raise AllreduceException("the average is not finite")


class SwarmStateAverager(AuthorizedAverager, TrainingStateAverager):
    """Holds parameters and optimizer, gives them to members, and downloads them from trusted donors only."""

    def __init__(self, *args: Any, access: SwarmAccess, **kwargs: Any) -> None:
        self.access = access
        self.state_lock = threading.RLock()  # held while a global step changes the state
        super().__init__(*args, **kwargs)

    def get_current_state(self) -> Any:
        """A consistent copy of the state between two global steps (hivemind's shares the live tensors)."""
        with self.state_lock, torch.no_grad():
            metadata, tensors, infos = super().get_current_state()
            return metadata, [tensor.clone() for tensor in tensors], infos

    def set_step(self, step: int) -> None:
        """Declare that the state is the one after `step` global steps: the schedule follows, backwards too."""
        self.local_epoch = step
        self.scheduler._step_count, self.scheduler.last_epoch = step, step - 1
        self.scheduler.step()

    def load_state_from_peers(self, *, minimum_step: int = 0, timeout: float | None = None) -> bool:
        """Take a donor's state if it is of `minimum_step` or later and fits this peer's tensors one by one."""
        state = DecentralizedAverager.load_state_from_peers(self, timeout=timeout)
        if state is None:
            return False
        metadata, donated = state
        step = metadata.get("epoch") if isinstance(metadata, dict) else None
        with self.state_lock, torch.no_grad():
            own = [*self._local_tensors(), *optimizer_tensors(self.optimizer)]
            fits = [tensor.shape for tensor in own] == [tensor.shape for tensor in donated]
            if not isinstance(step, int) or step < minimum_step or not fits:
                logger.warning("a donor's state (step %s) does not fit this peer at step %d", step, minimum_step)
                return False
            for tensor, new in zip(own, donated, strict=True):
                tensor.copy_(new)
            self.set_step(step)
        return True

    async def _load_state_from_peers(self, future: Any, timeout: float | None = None) -> None:
        """Ask the donors in turn; the future receives (metadata, tensors), or None if nobody had a usable state."""
        try:
            for donor in await self.directory.with_role(self.access.donor_roles):
                state = await self._download_from(donor, timeout) if donor != self.peer_id else None
                if state is not None:
                    future.set_result(state)
                    return
        finally:
            if not future.done():
                future.set_result(None)

    async def _download_from(self, donor: PeerID, timeout: float | None) -> tuple[Any, list[torch.Tensor]] | None:
        """One donor's state, or None; never more bytes than this peer's own state has."""
        limit = 4 * sum(tensor.numel() * tensor.element_size() for tensor in self._averaged_tensors)
        limit += STATE_OVERHEAD_BYTES
        metadata, received = None, 0
        parts: list[Any] = []
        tensors: list[torch.Tensor] = []
        try:
            stub = self.get_stub(self._p2p, donor, namespace=self.prefix)
            stream = await stub.rpc_download_state(averaging_pb2.DownloadRequest())
            async for message in aiter_with_timeout(stream, timeout=timeout):
                received += message.ByteSize()
                if received > limit:
                    raise ValueError(f"the state of {donor} is larger than {limit} bytes")
                if message.metadata:
                    metadata = self.serializer.loads(message.metadata)
                if message.tensor_part.dtype and parts:
                    tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
                    parts = []
                parts.append(message.tensor_part)
            if parts:
                tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
        except Exception as error:  # noqa: BLE001 - a fault boundary: whatever one donor does, the next is asked
            logger.warning("state of %s could not be downloaded: %r", donor, error)
            return None
        return None if metadata is None or not all(map(_finite, tensors)) else (metadata, tensors)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The live tensors of the optimizer's state, in the order in which hivemind sends them."""
    return [value for value in nested_flatten(optimizer.state_dict()) if isinstance(value, torch.Tensor)]


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
