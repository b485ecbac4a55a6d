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
from dataclasses import replace
from pathlib import Path
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind reads the annotations of rpc_ methods and knows only typing's

import hivemind
import psutil
import torch
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, get_dht_time

from auth.credentials import Credentials
from auth.swarm.access import SwarmAccess
from auth.swarm.authorizer import peers_key, record_subkey
from benchmarks.swarm.averaging import RUN, Plan
from peer.averaging.all_reduce import ExactAllReduce
from peer.averaging.averager import AveragedGroup, SwarmGradientAverager
from peer.averaging.meetings import Requirements, UnconfirmedAverageError
from peer.averaging.rounds import forget_frames
from peer.config.training import Averaging
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.swarm.dht import start_dht

LIFETIME_S = 3600.0


class WatchedAverager(SwarmGradientAverager):
    """An averager that reports the number of rounds in its process's memory."""

    def held_rounds(self) -> int:
        """Return the number of rounds in memory."""
        answer: MPFuture[int] = MPFuture()
        self._outer_pipe.send(("_count_rounds", [], {"answer": answer}))
        return int(answer.result())

    async def _count_rounds(self, answer: MPFuture[int]) -> None:
        answer.set_result(sum(type(thing) is ExactAllReduce for thing in gc.get_objects()))


class FailingAverager(WatchedAverager):
    """An averager that aborts in the middle of every second round."""

    rounds = 0

    async def _run_allreduce_inplace_(self, *args: Any, **kwargs: Any) -> AveragedGroup:
        self.rounds += 1
        return await super()._run_allreduce_inplace_(*args, **kwargs)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Aggregate all parts or, in every second round, only the first part."""
        async for message in super().rpc_aggregate_part(stream, context):
            yield message
            if self.rounds % 2:
                return


for averager_type in WatchedAverager, FailingAverager:
    averager_type.__name__ = SwarmGradientAverager.__name__  # hivemind's RPC names contain the class's name


def used_seconds() -> float:
    """Return the processor time of this process and its children, including p2p daemons."""
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [here, *here.children(recursive=True)])


def join(plan: Plan, credentials: Credentials) -> hivemind.DHT:
    """Start a member's DHT node."""
    place = Placement(host_maddrs=(f"/ip4/{plan.address}/tcp/0",))
    return start_dht(RUN, credentials, plan.initial_peers, place)


def main() -> None:
    """Average according to the plan in the first argument."""
    plan = Plan(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)  # hides stack traces of rounds that are meant to fail
    torch.set_num_threads(1)
    credentials = Credentials(Path(plan.credentials_dir))
    dht = join(plan, credentials)
    dht.store(peers_key(RUN), "here", get_dht_time() + LIFETIME_S, record_subkey(credentials.device_key.peer_id))
    access = SwarmAccess(credentials, RUN, frozenset({"keeper"}))
    shape = (plan.side, plan.side) if plan.side else (plan.values,)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for _ in range(plan.values // math.prod(shape))]
    for parameter in parameters:
        parameter.grad = torch.randn(shape)
    averager = (FailingAverager if plan.fails else WatchedAverager)(
        traffic=Traffic(),
        dht=dht,
        access=access,
        prefix=f"{RUN}_grad_averager",
        parameters=parameters,
        averaging=Averaging(**plan.averaging),
        allreduce_timeout=plan.timeout_s,
        next_chunk_timeout=plan.patience_s,
        start=True,
        warn=False,
    )
    first = plan.initial_peers[0].rsplit("/p2p/", 1)[1] if plan.initial_peers else dht.peer_id.to_base58()
    wanted = Requirements(code=averager.averaging.code, leaders=(first,), required=plan.peers, expected=plan.peers)
    print(json.dumps([str(address) for address in dht.get_visible_maddrs()]), flush=True)
    for line in sys.stdin:
        if (asked := json.loads(line)) == "processor":
            print(json.dumps(used_seconds()), flush=True)
            continue
        if asked == "rounds":
            print(json.dumps(averager.held_rounds()), flush=True)
            continue
        wanted = replace(wanted, step=wanted.step + 1)  # a step has one average only
        averager.want(wanted)
        averager.bandwidth = asked
        averager.local_samples_accumulated = plan.samples
        control = averager.schedule_step(timeout=plan.timeout_s, allow_retries=False)
        averager.step(control=control, reset_accumulators=False, wait=False)
        try:
            seconds = control.result(plan.timeout_s).seconds
        except (MatchmakingException, UnconfirmedAverageError) as error:
            forget_frames(error)
            seconds = None
        print(json.dumps(seconds), flush=True)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
