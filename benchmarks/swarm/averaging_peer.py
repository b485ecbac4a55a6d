"""One peer of averaging.py: `python -m benchmarks.swarm.averaging_peer PLAN` averages with the others repeatedly.

The peer prints its addresses. Each line of standard input starts one round and gives the rate to declare (bytes per
second, or null); the peer answers with the duration in seconds, or null if the round failed. It answers "rounds"
with the number of finished rounds in memory, and "processor" with the processor time of its processes in seconds.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent import futures
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from hivemind.utils import get_dht_time

from auth.credentials import Credentials
from auth.swarm.directory import SwarmAccess
from benchmarks.swarm.averaging import RUN, Plan
from peer.averaging.reducer import Reducer
from peer.averaging.reduction_service import ReductionService
from peer.averaging.requirements import Requirements
from peer.config.training import Averaging
from peer.gradients.buffer import GradientBuffer
from peer.network.placement import Placement
from peer.swarm import node_loop
from peer.swarm.messages import OrderDone, RecordPut
from peer.swarm.node_loop import NodeLoop, NodeParts
from peer.swarm.node_process import Listeners, NodeProcess

LIFETIME_S, LOOK_S = 3600.0, 0.01


class WatchedLoop(NodeLoop):
    """A node's event loop that also reports the number of rounds in its process's memory."""

    def obey(self, order: Any) -> None:
        """Execute an order, or count the rounds."""
        if order == "rounds":
            self._channel.send(OrderDone(0, sum(type(thing) is Reducer for thing in gc.get_objects())))
        else:
            super().obey(order)


def held_rounds(node: NodeProcess) -> int:
    """Return the number of rounds in the memory of the node's process."""
    node._orders[0] = answer = futures.Future[int]()
    node._send(cast(Any, "rounds"))
    return answer.result()


class FailingReductions(ReductionService):
    """A service that breaks off all streams in the middle of every second round."""

    rounds = 0

    def begin(self, group_id: bytes, reducer: Reducer) -> None:
        """Begin the next round."""
        self.rounds += 1
        super().begin(group_id, reducer)

    async def answer(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Return all averages or, in every second round, only the first one."""
        async with aclosing(super().answer(caller, requests)) as averages:
            async for average in averages:
                yield average
                if self.rounds % 2:
                    return


def used_seconds() -> float:
    """Return the processor time of this process and its children, including p2p daemons."""
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [here, *here.children(recursive=True)])


def main() -> None:
    """Average according to the plan in the first argument."""
    plan = Plan(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)  # hides stack traces of rounds that are meant to fail
    torch.set_num_threads(1)
    credentials = Credentials(Path(plan.credentials_dir))
    access = SwarmAccess(credentials, RUN, frozenset({"keeper"}))
    shape = (plan.side, plan.side) if plan.side else (plan.values,)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for _ in range(plan.values // math.prod(shape))]
    for parameter in parameters:
        parameter.grad = torch.randn(shape)
    gradients = GradientBuffer(parameters, Averaging(**plan.averaging, averaging_timeout_s=plan.timeout_s))
    vars(node_loop)["NodeLoop"] = WatchedLoop  # in the fork
    if plan.fails:
        vars(node_loop)["ReductionService"] = FailingReductions
    place = Placement(host_maddrs=(f"/ip4/{plan.address}/tcp/0",))
    node = NodeProcess(NodeParts(access, plan.initial_peers, place, gradients.averaging, gradients.shared))
    node.start()
    node.listen(Listeners(*cast(Any, [lambda *_: None] * 4)))
    node.order(RecordPut("here", get_dht_time() + LIFETIME_S)).result()
    peer_id = credentials.device_key.peer_id
    first = plan.initial_peers[0].rsplit("/p2p/", 1)[1] if plan.initial_peers else peer_id
    wanted = Requirements(code=gradients.averaging.code, leaders=(first,), required=plan.peers, expected=plan.peers)
    print(json.dumps(node.addresses), flush=True)
    for line in sys.stdin:
        if (asked := json.loads(line)) == "processor":
            print(json.dumps(used_seconds()), flush=True)
            continue
        if asked == "rounds":
            print(json.dumps(held_rounds(node)), flush=True)
            continue
        wanted = replace(wanted, step=wanted.step + 1)  # a step has one average only
        node.want(wanted)
        gradients.samples = plan.samples
        gradients.load()
        search, failed_before = node.seek(asked), node.failed_rounds
        node.begin(search, plan.samples)
        while not search.outcome.done() and node.failed_rounds == failed_before:
            time.sleep(LOOK_S)
        if not search.outcome.done():
            node.give_up(search)
        is_averaged = not search.outcome.cancelled() and search.outcome.exception() is None
        print(json.dumps(search.outcome.result().seconds if is_averaged else None), flush=True)
    node.shutdown()


if __name__ == "__main__":
    main()
