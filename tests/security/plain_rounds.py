"""Rounds of plain hivemind averagers, of a few values each, one of which lies. Used by `test_plain_hivemind.py`."""

from __future__ import annotations

import multiprocessing as mp
from concurrent import futures
from dataclasses import dataclass, field

import hivemind
import torch

from tests.security.bad_parts import send_bad_parts
from tests.security.processes import Orders
from tests.support.waiting import PATIENCE_S

HONEST = (1.0, 3.0)  # what all values of each honest peer are
LIARS = 5.0
VALUES = 9  # a tensor each, so that each peer reduces three
MATCHMAKING_S = 1.0
ROUND_S = 20.0  # after which all try again


@dataclass(frozen=True)
class RoundsPlan:
    """Which attacks to try, one round each."""

    attacks: list[str] = field(default_factory=list)


def start_averager(initial_peers: list[str], value: float) -> hivemind.DecentralizedAverager:
    """In its documented form; only its waiting times are shortened."""
    dht = hivemind.DHT(
        initial_peers=initial_peers, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], startup_timeout=PATIENCE_S
    )
    return hivemind.DecentralizedAverager(
        [torch.full((1,), value) for _ in range(VALUES)],
        dht=dht,
        prefix="plain",
        target_group_size=4,
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=0.5,
        next_chunk_timeout=2.0,
        allow_state_sharing=False,
        start=True,
    )


def run_rounds(plan: RoundsPlan, orders: Orders) -> None:
    """Average under each attack and say what an honest peer's values are then; the liar reduces some of them itself."""
    mp.set_start_method("fork", force=True)
    first = start_averager([], HONEST[0])
    addresses = [str(address) for address in first.dht.get_visible_maddrs()]
    second = start_averager(addresses, HONEST[1])
    send_bad_parts(orders)  # in the process that is forked next
    averagers = [first, second, start_averager(addresses, LIARS)]
    for attack in plan.attacks:
        orders.attack = attack
        values = average(averagers)
        while not values:
            values = average(averagers)
        orders.say("averaged", attack=attack, values=values)
    orders.stop.wait()


def average(averagers: list[hivemind.DecentralizedAverager]) -> list[float]:
    """The first honest peer's values after a round; empty if they did not come together."""
    for averager, value in zip(averagers, (*HONEST, LIARS), strict=True):
        with averager.get_tensors() as tensors:
            for tensor in tensors:
                tensor.fill_(value)
    steps = [averager.step(weight=1.0, timeout=ROUND_S, wait=False) for averager in averagers]
    try:
        gathered = steps[0].result(2 * ROUND_S)
    except (futures.TimeoutError, hivemind.averaging.partition.AllreduceException):
        gathered = None
    futures.wait(steps, 2 * ROUND_S)
    if gathered is None or len(gathered) < len(averagers):
        return []
    with averagers[0].get_tensors() as tensors:
        return [float(tensor) for tensor in tensors]
