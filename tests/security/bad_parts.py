"""What a liar sends in place of its parts: patches in its own process only."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import torch
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import as_aiter

from peer.averaging.all_reduce import ExactAllReduce
from peer.averaging.reducer import Messages
from tests.support.peer_processes import Orders

HUGE = 1e30
INFLATED = 20
MORE = 1000  # parts that nobody has asked for
Part = averaging_pb2.AveragingData


def _with_weight(weight: float) -> Callable[[Part], Part]:
    def twist(part: Part) -> Part:
        part.weight = weight
        return part

    return twist


def _with_values(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Part], Part]:
    def twist(part: Part) -> Part:
        part.tensor_part.CopyFrom(serialize_torch_tensor(change(deserialize_torch_tensor(part.tensor_part))))
        return part

    return twist


def _with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Part], Part]:
    def twist(part: Part) -> Part:
        part.tensor_part.buffer = change(part.tensor_part.buffer)
        return part

    return twist


def _with_times_weight(times: float) -> Callable[[Part], Part]:
    def twist(part: Part) -> Part:
        part.weight *= times
        return part

    return twist


def _turned_round(part: Part) -> Part:
    return _with_values(lambda values: -values)(part)


TWISTS: dict[str, Callable[[Part], Part]] = {
    "huge weight": _with_weight(HUGE),
    "no number": _with_values(lambda values: torch.full_like(values, math.nan)),
    "thousandfold": _with_values(lambda values: -1000 * values),
    "opposite": _turned_round,
    "20 times": _with_times_weight(INFLATED),
    "20 times, opposite": lambda part: _with_times_weight(INFLATED)(_turned_round(part)),
    "garbage": _with_bytes(lambda _: b"garbage"),
}


async def twisted(attack: str, parts: AsyncIterator[Part]) -> AsyncIterator[Part]:
    """The parts as this attack sends them."""
    last = None
    async for part in parts:
        if attack == "stalled" and last is not None:
            await asyncio.Event().wait()
        last = TWISTS[attack](part) if attack in TWISTS else part
        yield last
    if attack == "stalled":  # where there is one part only: never the end
        await asyncio.Event().wait()
    for _ in range(MORE if attack == "endless" and last is not None else 0):
        yield last


def send_bad_parts(orders: Orders) -> None:
    """From now on let this process, and what it forks, send what it is told to; call it before joining."""
    honest = ExactAllReduce._committed_parts

    async def committed_parts(self: ExactAllReduce, reducer: int) -> Messages:
        opening, *messages = [message async for message in honest(self, reducer)]
        parts = [part async for part in twisted(orders.told, as_aiter(*messages))]
        if parts:  # it is committed to what it sends, as an honest sender is
            opening.weight = parts[0].weight
            digests = self.evidence.commit(reducer, [part.tensor_part for part in parts], opening.weight)
            opening.tensor_part.buffer = b"".join(digests)
        for message in opening, *parts:
            yield message

    ExactAllReduce._committed_parts = committed_parts  # type: ignore[method-assign]
