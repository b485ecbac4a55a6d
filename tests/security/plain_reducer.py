"""A round of plain hivemind averagers of a few values each, one of which reduces falsely.

Used by `test_plain_hivemind.py`, which shows that everybody takes what it returns.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hivemind
import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto import averaging_pb2

from tests.security.processes import Orders
from tests.support.waiting import PATIENCE_S

VALUES = (1.0, 5.0, 6.0)  # of the two honest peers and the liar, what all of their values are
TENSORS = 9  # of one value, so that each peer reduces three
AVERAGE = 4.0
ROUND_S = 20.0  # after which all try again
FALSE_DELTAS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "not finite": lambda delta, _: torch.full_like(delta, float("nan")),
    "flipped": lambda delta, _: -delta,
    "unlike": lambda delta, receiver: delta + receiver,
}


@dataclass(frozen=True)
class ReducerPlan:
    """Which attacks to play, a round each."""

    attacks: list[str] = field(default_factory=list)


def start_averager(initial_peers: list[str], bandwidth: float) -> hivemind.DecentralizedAverager:
    """In its documented form; only its waiting times are shortened."""
    dht = hivemind.DHT(
        initial_peers=initial_peers, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], startup_timeout=PATIENCE_S
    )
    return hivemind.DecentralizedAverager(
        [torch.zeros(1) for _ in range(TENSORS)],
        dht=dht,
        prefix="plain",
        target_group_size=4,
        min_matchmaking_time=2.0,
        request_timeout=0.5,
        bandwidth=bandwidth,
        allow_state_sharing=False,
        start=True,
    )


def return_false_deltas(attack: Any) -> None:
    """From now on let averagers that this process forks return what no honest one would (`attack`: shared memory)."""
    honest = AllReduceRunner._accumulate_parts_streaming
    kinds = list(FALSE_DELTAS)

    async def accumulate(
        runner: AllReduceRunner, stream: Any, sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in honest(runner, stream, sender_index):
            delta = FALSE_DELTAS[kinds[attack.value]](deserialize_torch_tensor(message.tensor_part), sender_index)
            message.tensor_part.CopyFrom(serialize_torch_tensor(delta))
            yield message

    AllReduceRunner._accumulate_parts_streaming = accumulate


def run_false_reducer(plan: ReducerPlan, orders: Orders) -> None:
    """Average under each attack; say what both honest peers hold then."""
    mp.set_start_method("fork", force=True)
    first = start_averager([], 1e6)
    addresses = [str(address) for address in first.dht.get_visible_maddrs()]
    second = start_averager(addresses, 1e6)
    attack = mp.Value("i", 0)
    return_false_deltas(attack)
    averagers = [first, second, start_averager(addresses, 1e9)]
    for name in plan.attacks:
        attack.value = list(FALSE_DELTAS).index(name)
        while not average(averagers):
            continue
        held = []
        for averager in averagers[:2]:
            with averager.get_tensors() as tensors:
                held.append([float(tensor) for tensor in tensors])
        orders.say("averaged", attack=name, held=held)
    orders.stop.wait()


def average(averagers: list[hivemind.DecentralizedAverager]) -> bool:
    """One round from the beginning; whether all came together."""
    for averager, value in zip(averagers, VALUES, strict=True):
        with averager.get_tensors() as tensors:
            for tensor in tensors:
                tensor.fill_(value)
    steps = [averager.step(weight=1.0, timeout=ROUND_S, wait=False, allow_retries=False) for averager in averagers]
    results = []
    for step in steps:
        try:
            results.append(step.result(2 * ROUND_S))
        except Exception:  # noqa: BLE001 - whatever kept them apart, they try again
            results.append(None)
    return all(result is not None and len(result) == len(averagers) for result in results)
