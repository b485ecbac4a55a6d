"""The benchmark of virtual workers: they average what one process computes, and codes change only what they must."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.virtual_workers import MICROBATCH, WAYS, Standing, VirtualSwarm, decode_any
from peer.backends.local_steps import LocalSteps, own_model
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.reduction.compression import HALF_BYTES
from tests.support.tiny_albert import random_batch, tiny_config, tiny_model

WORKERS, ROUNDS = 2, 3


def run_of(**averaging: Any) -> RunConfig:
    """A run whose batch is one microbatch of each worker, or as many as the local steps."""
    raw = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).model_dump(mode="json")
    raw["data"] |= {"microbatch_size": MICROBATCH}
    raw["averaging"] |= {"target_batch_size": MICROBATCH * WORKERS, "compression": "none", **averaging}
    raw["schedule"] |= {"warmup_steps": 0, "total_steps": 1_000_000}  # a constant rate
    return RunConfig.from_mapping(raw)


def batches_of(worker: int) -> Iterator[Batch]:
    return (random_batch(100 * worker + number, MICROBATCH) for number in range(100))


def trained(config: RunConfig) -> torch.Tensor:
    """Return all parameters after some rounds of virtual workers."""
    model = tiny_model(config)
    swarm = VirtualSwarm(config, model, [batches_of(worker) for worker in range(WORKERS)])
    swarm.train(ROUNDS, delay=config.averaging.delay)
    return flat(model)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_exact_averages_are_the_steps_of_one_process() -> None:
    """The workers' batches together are its batch."""
    config = run_of()
    model = tiny_model(config)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    scheduler, backend = build_scheduler(config, optimizer), TorchBackend(config, model)
    streams = [batches_of(worker) for worker in range(WORKERS)]
    for _ in range(ROUNDS):
        samples = sum(backend.accumulate(next(stream)).samples for stream in streams)
        torch._foreach_div_([each.grad for each in model.parameters() if each.grad is not None], samples)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    assert torch.allclose(trained(config), flat(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if not way.is_local])
def test_each_way_trains_near_exact_averages(way: str) -> None:
    """After so few steps even sparse gradients have led to nearly the same place, and none to the very same."""
    moved = trained(run_of()) - (first := flat(tiny_model(run_of())))
    own = trained(run_of(**WAYS[way].averaging)) - first
    assert torch.nn.functional.cosine_similarity(own, moved, dim=0) > 0.3
    assert torch.equal(own, moved) == (way == "exact")


@pytest.mark.parametrize("delay", [False, True])
def test_local_steps_are_all_in_the_common_model(delay: bool) -> None:
    """With plain outer steps one worker's common model has taken its local steps, however late they were averaged."""
    local = {"local_steps": 4, "outer_learning_rate": 1.0, "outer_momentum": 0.0, "delay": delay}
    config = run_of(**local, target_batch_size=4 * MICROBATCH)
    model, alone = tiny_model(config), tiny_model(config)
    VirtualSwarm(config, model, [batches_of(0)]).train(ROUNDS, delay=delay)
    single = config.model_copy(update={"averaging": config.averaging.model_copy(update={"local_steps": 4 * ROUNDS})})
    standing = Standing(build_optimizer(single, parameter_groups(alone, single)))
    own = own_model(single, alone)
    backend = LocalSteps(config, TorchBackend(config, own), own, alone, standing)
    stream = batches_of(0)
    for _ in range(4 * ROUNDS):
        backend.accumulate(next(stream))
    assert torch.allclose(flat(model), flat(own), rtol=0, atol=1e-4)


def test_a_code_rounds_as_the_receiver_decodes() -> None:
    """Half bytes are coarse, and float32 is not."""
    values = torch.randn(300)
    assert torch.equal(decode_any(values, 0), values)
    rounded = decode_any(values, HALF_BYTES.compression_type)
    assert 0 < float((rounded - values).abs().max()) < 0.5
