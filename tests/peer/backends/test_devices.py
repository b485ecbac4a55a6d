"""Which backend a device gets, and what is said where it cannot have one."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest
import torch

from auth.errors import ConfigError
from peer.backends.devices import choose_backend
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from tests.support.tiny_albert import gradients, random_batch, tiny_config, tiny_model
from tests.support.tiny_families import family_config, family_model


@pytest.mark.thorough
def test_pytorch_and_jax_give_the_same_gradients() -> None:
    """Whichever is chosen, the swarm finds the same sums in `.grad` once they are collected."""
    config, found = tiny_config(), []
    for device in "cpu", "jax":
        model = tiny_model(config)
        backend = choose_backend(device, "auto", config, model)(1)
        backend.accumulate(random_batch(1, samples=5))
        backend.collect()
        found.append((backend, gradients(model)))
    (pytorch, expected), (jax, ours) = found
    assert isinstance(pytorch, TorchBackend)
    assert (pytorch.description, jax.description) == ("cpu (1 thread)", "cpu × 8 (JAX, float32)")
    assert [backend.microbatch_size(4, 100, random_batch) for backend in (pytorch, jax)] == [4, 32]
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_accelerators_get_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the chosen ones make one backend, while the swarm's own parameters stay where they are."""
    started: list[object] = []

    def start(config: RunConfig, model: object, devices: object, precision: str) -> object:
        started.extend([devices, precision])
        return object()

    monkeypatch.setattr("peer.backends.devices.ReplicaBackend", start)
    monkeypatch.setattr("peer.backends.hardware._has_bf16", lambda device: False)
    config = tiny_config()
    for device in "cuda:0,2", "mps":
        choose_backend(device, "auto", config, tiny_model(config))(1)
    assert started == [(torch.device("cuda", 0), torch.device("cuda", 2)), "fp16", (torch.device("mps"),), "fp32"]


def test_missing_tpu_is_one_clear_error() -> None:
    """Who asks for a TPU where JAX sees none reads what to do instead."""
    config = tiny_config()
    start = choose_backend("tpu", "auto", config, tiny_model(config))
    with pytest.raises(ConfigError, match=r"--device tpu.*can use no such device.*--device auto"):
        start(1)


def test_missing_jax_is_told_before_the_swarm_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that installs it."""

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == "jax" else ModuleSpec(name, None)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    config = tiny_config()
    with pytest.raises(ConfigError, match=r"install .*\[tpu\]"):
        choose_backend("jax", "auto", config, tiny_model(config))


@pytest.mark.parametrize("family", ["gpt2", "modernbert"])
def test_family_that_jax_does_not_know_is_told_before_the_swarm_is_joined(family: str) -> None:
    """The error names the family and the remedy."""
    config = family_config(family)
    with pytest.raises(ConfigError, match=f"not `{family}`: use `--device auto`"):
        choose_backend("tpu", "auto", config, family_model(config))
