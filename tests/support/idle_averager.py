"""An averager of gradients that is never started, and rounds in which a test stands in for its group's all-reduce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import hivemind
import pytest
import torch

from auth.swarm.access import SwarmAccess
from peer.averaging.averager import AveragedGroup, SwarmGradientAverager
from peer.config.training import Averaging
from peer.network.traffic import Traffic
from tests.support.waiting import PATIENCE_S

GROUP = cast(Any, SimpleNamespace(group_id=b"group", group_size=2))
HALF_BYTES = 900  # that others send to this peer in each half of a round
Parameters = list[torch.nn.Parameter]


def idle_averager(dht: hivemind.DHT, parameters: Parameters, averaging: Averaging) -> SwarmGradientAverager:
    """Return an averager with gradients of six samples."""
    averager = SwarmGradientAverager(
        parameters,
        dht=dht,
        prefix="test",
        access=cast(SwarmAccess, SimpleNamespace(run="run", credentials=SimpleNamespace(authority=b"key"))),
        traffic=Traffic(),
        allreduce_timeout=PATIENCE_S,
        averaging=averaging,
        start=False,
    )
    accumulate(averager, parameters, seed=1, samples=6)
    return averager


def accumulate(averager: SwarmGradientAverager, parameters: Parameters, seed: int, samples: int) -> None:
    """Add a microbatch's gradients."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.add_(samples * torch.randn(parameter.shape, generator=generator))
    averager.accumulate_grads_(samples)


def averaged(averager: SwarmGradientAverager) -> list[torch.Tensor]:
    """Return copies of the averaged tensors."""
    with averager.get_tensors() as tensors:
        return [tensor.clone() for tensor in tensors]


def take_round(
    averager: SwarmGradientAverager,
    all_reduce: Callable[[Sequence[torch.Tensor], bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> AveragedGroup:
    """Take a round with a group of two; `all_reduce` averages the values of each of its halves in place, or raises."""

    async def average_exactly(_: Any, values: Sequence[torch.Tensor], group: Any, half: bytes) -> AveragedGroup:
        all_reduce(values, half)
        return AveragedGroup(size=group.group_size, samples=12, averaged_bytes=HALF_BYTES)

    monkeypatch.setattr(SwarmGradientAverager, "_average_exactly", average_exactly)
    averager.load_accumulators_into_averager_()
    with averager.get_tensors() as tensors:
        group: AveragedGroup = result_of(averager._run_allreduce_inplace_(tensors, GROUP))
        return group


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what it returns, in an event loop that leaves hivemind's alone."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
