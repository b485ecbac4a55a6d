"""What a member changes to answer slowly as a reducer, in its own process only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2

from peer.averaging.all_reduce import ExactAllReduce
from tests.security.processes import Orders

SLOW_S = 5.0  # for each message of a slow reducer: long before it would be cut off, which is for saying nothing


def answer_slowly(orders: Orders) -> None:
    """From now on let this process, and what it forks, reduce slowly while it is told to; call it before joining."""
    reduce = ExactAllReduce.rpc_aggregate_part

    async def rpc_aggregate_part(
        runner: ExactAllReduce, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in reduce(runner, stream, context):
            await asyncio.sleep(SLOW_S if orders.attack == "slow" else 0.0)
            yield message

    ExactAllReduce.rpc_aggregate_part = rpc_aggregate_part  # type: ignore[method-assign, assignment]
