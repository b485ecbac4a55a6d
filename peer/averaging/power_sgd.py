"""The averager of gradients that sends each large matrix as two factors (PowerSGD).

`peer.averaging.low_rank` has the arithmetic.

hivemind's own averages differences, lets each peer's numbers drift from the others', changes its buffers in rounds that
fail, and multiplies by factors that grow with the gradient's square, too small for 16 bits. Here both halves of a round
are exact ones of the same group, and only a round that brought every value changes anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from hivemind.averaging.group_info import GroupInfo

from peer.averaging.averager import AveragedGroup, SwarmGradientAverager
from peer.averaging.low_rank import LowRank, orthonormal
from peer.averaging.shares import part_size

FIRST = b".images"  # after the group's id: what its peers average before the rest


class PowerSGDAverager(SwarmGradientAverager):
    """An averager of gradients like `SwarmGradientAverager` that averages matrices by factors of the given rank."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, rank: int, **kwargs: Any) -> None:
        parameters = tuple(parameters)
        self._low_rank = LowRank([parameter.shape for parameter in parameters], rank)
        super().__init__(parameters, **kwargs)

    def load_accumulators_into_averager_(self) -> None:
        """Put the mean gradient over the samples that are due, with earlier remainders, into the averaged tensors."""
        super().load_accumulators_into_averager_()
        with self.get_tensors() as averaged:
            self._low_rank.load(averaged, self.due_samples)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Put the averages into the averaged tensors, then lend `.grad` to them for a step."""
        with self.get_tensors() as averaged:
            self._low_rank.restore(averaged)
        with super().making_room():
            yield

    def drop_all(self) -> int:
        """Forget what was accumulated, set aside or lost in earlier rounds; returns the samples of the first two."""
        self._low_rank.forget()
        return super().drop_all()

    @contextmanager
    def _register_allreduce_group(self, group_info: GroupInfo) -> Iterator[None]:
        """Let others send the parts of either half; senders for a half that does not come are released."""
        halves = (group_info.group_id + FIRST, group_info.group_id)
        self._running_groups[halves[0]] = asyncio.Future()
        with super()._register_allreduce_group(group_info):
            try:
                yield
            finally:
                for half in halves:
                    self._running_groups[half].cancel()  # nothing happens to one that has begun
                del self._running_groups[halves[0]]

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs: Any
    ) -> AveragedGroup:
        """Average matrices' images, then their coordinates with all other tensors; raises if a value is missing.

        The group's samples are those of the second half: any images give directions, coordinates are the average.
        """
        del group_id
        began, low_rank = time.perf_counter(), self._low_rank

        async def average(values: Sequence[torch.Tensor], half: bytes) -> AveragedGroup:
            size_bytes = 2 * sum(map(torch.Tensor.numel, values))
            options = kwargs | {"part_size_bytes": part_size(size_bytes, group_info.group_size)}
            return await super(PowerSGDAverager, self)._run_allreduce_inplace_(values, group_info, half, **options)

        received_bytes = 0
        images = await asyncio.to_thread(low_rank.images, tensors)
        if images:
            received_bytes = (await average(images, group_info.group_id + FIRST)).averaged_bytes
        lefts = await asyncio.to_thread(lambda: [orthonormal(image) for image in images])
        values = await asyncio.to_thread(low_rank.coordinates, tensors, lefts)
        group = await average(values, group_info.group_id)
        low_rank.take(tensors, lefts, values)
        seconds = time.perf_counter() - began
        return replace(group, averaged_bytes=group.averaged_bytes + received_bytes, seconds=seconds)
