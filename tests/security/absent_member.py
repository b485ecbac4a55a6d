"""What a member changes to be missing in each round that it has joined: as a reducer, or altogether.

Patches in its own process only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2

from peer.averaging.all_reduce import ExactAllReduce
from peer.averaging.averager import AveragedGroup, BalancedRounds
from tests.security.processes import Orders

SLOW_S = 5.0  # for each message of a slow reducer: long before it would be cut off, which is for saying nothing


def be_absent(orders: Orders) -> None:
    """From now on let this process, and what it forks, be missing while it is told to; call it before joining."""
    reduce, take_part = ExactAllReduce.rpc_aggregate_part, BalancedRounds._aggregate_with_group

    async def rpc_aggregate_part(
        runner: ExactAllReduce, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        if orders.attack == "stall":
            await asyncio.Event().wait()
        if orders.attack == "refuse":
            yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
            return
        async for message in reduce(runner, stream, context):
            await asyncio.sleep(SLOW_S if orders.attack == "slow" else 0.0)
            yield message

    async def aggregate_with_group(averager: Any, group_info: GroupInfo, **kwargs: Any) -> AveragedGroup:
        if orders.attack == "leave":
            raise AllreduceException("it has left")
        return await take_part(averager, group_info, **kwargs)

    ExactAllReduce.rpc_aggregate_part = rpc_aggregate_part  # type: ignore[method-assign, assignment]
    BalancedRounds._aggregate_with_group = aggregate_with_group  # type: ignore[method-assign]
