"""Local steps of one peer, and what the swarm gets of them; whole swarms are in tests/system."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from peer.backends.jax_backend import JaxBackend
from peer.backends.local_steps import LocalSteps, own_model, with_local_steps
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.models.optimizer_setup import build_optimizer, parameter_groups
from tests.support.swarm_peer import moments
from tests.support.tiny_albert import random_batch, tiny_config, tiny_model

SAMPLES = 3  # in a microbatch
PLAIN: dict[str, Any] = {"name": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "max_grad_norm": 1e6}


def local_run(
    local_steps: int = 2, target: int = 12, optimizer: dict[str, Any] | None = None, **sections: Any
) -> RunConfig:
    """A tiny run whose warm-up is over at once; its outer step takes the mean difference as it is."""
    run = tiny_config().model_dump(mode="json")
    run["data"] |= {"microbatch_size": SAMPLES}
    run["optimizer"] |= PLAIN if optimizer is None else optimizer
    run["schedule"] |= {"warmup_steps": 0, "total_steps": 1_000_000_000}
    run["averaging"] |= {"target_batch_size": target, "local_steps": local_steps}
    run["averaging"] |= {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
    return RunConfig.from_mapping(run | sections)


class Peer:
    """A model that the swarm holds, and the backend that takes local steps away from it; it counts as a swarm does."""

    def __init__(self, config: RunConfig) -> None:
        self.step = self.own_samples = self.set_aside_samples = 0
        self.common = tiny_model(config)
        self.own = own_model(config, self.common)
        self.optimizer: torch.optim.Optimizer = build_optimizer(config, parameter_groups(self.common, config))
        backend = TorchBackend(config, self.own)
        self.backend = with_local_steps(config, backend, self.own, self.common, self)

    def difference(self) -> torch.Tensor:
        """How far the copy is from the common parameters, as one vector."""
        return flat(self.common) - flat(self.own)

    def gradient(self) -> torch.Tensor:
        """What the swarm would average, times samples."""
        self.backend.collect()
        return torch.cat([p.grad.flatten() for p in self.common.parameters() if p.grad is not None])


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All trained parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def mean_gradient(config: RunConfig, seeds: list[int]) -> torch.Tensor:
    """Of these microbatches together, at the first parameters."""
    model = tiny_model(config)
    backend = TorchBackend(config, model)
    for seed in seeds:
        backend.accumulate(random_batch(seed, SAMPLES))
    sums = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    return torch.cat([total.flatten() for total in sums]) / (len(seeds) * SAMPLES)


def test_one_local_step_each_is_plain_sgd_on_all_gradients() -> None:
    """Two peers' single SGD steps, averaged by samples and taken by an outer step of rate 1, are one step for both."""
    config = local_run(local_steps=2, target=12)
    peers, seeds = [Peer(config), Peer(config)], [[1, 2], [3, 4]]
    for peer, own in zip(peers, seeds, strict=True):
        for seed in own:
            peer.backend.accumulate(random_batch(seed, SAMPLES))
    outer = peers[0].common
    average = sum(peer.gradient() for peer in peers) / 12
    optimizer = build_optimizer(config, parameter_groups(outer, config))
    start, position = flat(outer), 0
    for parameter in outer.parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            parameter.grad.copy_(average[position : position + parameter.numel()].view_as(parameter))
            position += parameter.numel()
    optimizer.step()
    expected = start - config.optimizer.learning_rate * mean_gradient(config, [1, 2, 3, 4])
    assert torch.allclose(flat(outer), expected, rtol=0, atol=2e-6)
    assert not torch.allclose(flat(outer), start, rtol=0, atol=1e-3)


def test_steps_are_taken_when_their_batch_is_full() -> None:
    """The copy stays where it is until a local batch is complete, and then leaves the common parameters."""
    peer = Peer(local_run(local_steps=2, target=12))
    before = flat(peer.common)
    peer.backend.accumulate(random_batch(1, SAMPLES))
    assert torch.equal(peer.difference(), torch.zeros_like(before))
    peer.backend.accumulate(random_batch(2, SAMPLES))
    assert peer.difference().norm() > 0
    assert torch.equal(flat(peer.common), before)


@pytest.mark.parametrize("name", ["sgd", "adamw", "stable_adamw", "muon", "lamb"])
def test_every_inner_optimizer_learns(name: str) -> None:
    """Local steps on the same batch, over and over, lower its loss, whatever the inner optimizer."""
    rate = {"sgd": 0.1, "adamw": 1e-3, "stable_adamw": 1e-3, "muon": 1e-3, "lamb": 1e-2}[name]
    config = local_run(4, 12, {"name": name, "learning_rate": rate, "max_grad_norm": 1.0})
    peer = Peer(config)
    losses = [peer.backend.accumulate(random_batch(1, SAMPLES)).loss for _ in range(30)]
    assert losses[-1] < losses[0] - 0.2


def test_what_is_left_over_counts_for_its_share() -> None:
    """Samples that fill no local batch are in the difference all the same, by a step that is shorter."""
    config = local_run(local_steps=2, target=12)
    peer = Peer(config)
    peer.backend.accumulate(random_batch(1, SAMPLES))  # half of a local batch
    expected = 0.5 * config.optimizer.learning_rate * mean_gradient(config, [1])
    assert torch.allclose(peer.gradient() / SAMPLES, expected, rtol=0, atol=2e-6)


def test_a_round_tried_again_averages_the_same_numbers() -> None:
    """Collecting twice, as after a failed round, gives the same difference."""
    peer = Peer(local_run())
    peer.backend.accumulate(random_batch(1, SAMPLES))
    first = peer.gradient().clone()
    assert torch.equal(peer.gradient(), first)


def test_after_an_outer_step_the_copy_begins_from_the_common_parameters() -> None:
    """Whatever the swarm has made of them; samples of before count no more."""
    peer = Peer(local_run())
    peer.backend.accumulate(random_batch(1, SAMPLES))
    peer.backend.collect()
    with torch.no_grad():
        for parameter in peer.common.parameters():
            parameter.mul_(0.9)
    peer.step = 1
    peer.backend.synchronize()
    assert torch.equal(peer.difference(), torch.zeros_like(peer.difference()))
    assert peer.gradient().norm() == 0


def test_local_gradients_are_clipped_and_no_other() -> None:
    """A local step's gradient has at most the recipe's norm; the averaged difference is not clipped again."""
    config = local_run(2, 12, PLAIN | {"max_grad_norm": 0.01})
    peer = Peer(config)
    for seed in range(4):
        peer.backend.accumulate(random_batch(seed, SAMPLES))
    reach = 2 * config.optimizer.learning_rate * 0.01
    assert 0.5 * reach < peer.difference().norm() < 1.001 * reach
    optimizer = build_optimizer(config, parameter_groups(peer.common, config))
    start = flat(peer.common)
    for parameter in peer.common.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 3.0)
    optimizer.step()
    assert torch.allclose(flat(peer.common), start - 3.0, rtol=0, atol=1e-5)


def test_a_microbatch_that_is_not_finite_moves_nothing() -> None:
    """It is dropped by the backend beneath and is in no local step."""
    peer = Peer(local_run())
    with torch.no_grad():
        next(iter(peer.own.parameters())).fill_(float("nan"))
    assert not peer.backend.accumulate(random_batch(1, SAMPLES)).finite
    peer.backend.synchronize()
    assert peer.gradient().norm() == 0


def test_a_fresh_phase_forgets_the_inner_moments() -> None:
    """At a boundary with a fresh optimizer the inner moments begin at zero, and the local batch follows the phase."""
    phases = [{"from_step": 1, "optimizer": "fresh", "target_batch_size": 24}]
    config = local_run(2, 12, {"name": "adamw"}, phases=phases)
    peer = Peer(config)
    assert isinstance(peer.backend, LocalSteps)
    for seed in range(2):
        peer.backend.accumulate(random_batch(seed, SAMPLES))
    assert moments(peer.backend.inner)["step"] > 0
    peer.step = 1
    peer.backend.synchronize()
    assert not any(moments(peer.backend.inner).values())
    for seed in range(3):
        peer.backend.accumulate(random_batch(seed, SAMPLES))
    assert peer.difference().norm() == 0  # 9 of 12


def test_without_local_steps_the_backend_works_on_the_swarms_model() -> None:
    """A run of one local step is the synchronous one: no copy, no second optimizer."""
    config = tiny_config()
    peer = Peer(config)
    assert peer.own is peer.common
    assert isinstance(peer.backend, TorchBackend)


@pytest.mark.thorough
def test_the_same_local_steps_with_jax() -> None:
    """On JAX's devices a peer's copy goes the same way as with PyTorch."""
    config = local_run(2, 12, {"name": "adamw", "learning_rate": 1e-3})
    with_torch, with_jax = Peer(config), Peer(config)
    beneath = JaxBackend(config, with_jax.own, jax.devices()[:1])
    with_jax.backend = with_local_steps(config, beneath, with_jax.own, with_jax.common, with_jax)
    for peer in (with_torch, with_jax):
        for seed in range(3):  # one local step, and half of one
            peer.backend.accumulate(random_batch(seed, SAMPLES))
    expected = with_torch.gradient()
    assert (with_jax.gradient() - expected).norm() < 0.02 * expected.norm()
