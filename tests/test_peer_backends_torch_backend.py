"""Gradients add up to a sum over samples, and what is not finite stays out."""

from __future__ import annotations

import math

import pytest
import torch

from peer.backends.torch_backend import TorchBackend, to_device
from tests.tiny_albert import gradients, random_batch, tiny_config, tiny_model, transformers_outputs


def test_gradient_is_the_sum_over_samples() -> None:
    """Two microbatches of different size leave, for each, its mean loss's gradient times its samples in `.grad`."""
    config = tiny_config()
    model = tiny_model(config)
    batches = [random_batch(1, samples=2), random_batch(2, samples=5)]
    for batch in batches:
        (transformers_outputs(model, batch).loss * batch.samples).backward()
    expected = gradients(model)
    model.zero_grad()
    backend = TorchBackend(config, model)
    results = [backend.accumulate(batch) for batch in batches]
    assert [result.samples for result in results] == [2, 5]
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-4)


def test_gradients_are_added_in_place() -> None:
    """The buffers that the swarm holds stay the same tensors."""
    config = tiny_config()
    model = tiny_model(config)
    buffers = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = buffers[name]
    backend = TorchBackend(config, model)
    for seed in 1, 2:
        backend.accumulate(random_batch(seed))
    assert all(parameter.grad is buffers[name] for name, parameter in model.named_parameters())
    assert buffers["albert.embeddings.word_embeddings.weight"].abs().sum() > 0


def test_losses_are_reported() -> None:
    """The result carries the total and its two parts, as transformers computes them."""
    config = tiny_config()
    model, batch = tiny_model(config), random_batch(3)
    result = TorchBackend(config, model).accumulate(batch)
    assert result.finite
    assert result.sop_loss is not None
    assert result.loss == pytest.approx(transformers_outputs(model, batch).loss.item(), abs=1e-5)
    assert result.loss == pytest.approx(result.mlm_loss + result.sop_loss, abs=1e-5)


def test_loss_that_is_not_finite_leaves_no_gradient() -> None:
    """A microbatch that blows up is dropped before its backward pass, and what was accumulated stays good."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model)
    backend.accumulate(random_batch(1))
    before = gradients(model)
    with torch.no_grad():
        model.predictions.bias.fill_(math.nan)
    result = backend.accumulate(random_batch(2))
    assert not result.finite
    assert math.isnan(result.loss)
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(model).items())
    assert backend.gradients_are_finite()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_gradient_that_is_not_finite_is_noticed(bad: float) -> None:
    """One bad number among all gradients is enough to keep them from the swarm."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model)
    assert backend.gradients_are_finite()  # nothing accumulated yet
    backend.accumulate(random_batch(1))
    assert backend.gradients_are_finite()
    gradient = model.albert.pooler.weight.grad
    assert gradient is not None
    gradient[3, 4] = bad
    assert not backend.gradients_are_finite()


def test_threads_are_set_for_the_process() -> None:
    """The number of threads that the volunteer allows is what PyTorch uses."""
    config = tiny_config()
    before = torch.get_num_threads()
    try:
        TorchBackend(config, tiny_model(config), threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_batch_moves_to_the_device_whole() -> None:
    """Every tensor of the batch goes to the accelerator; what is absent stays absent; the CPU copies nothing."""
    batch = random_batch(1, sop=False)
    assert to_device(batch, torch.device("cpu")) is batch
    moved = to_device(batch, torch.device("meta"))
    assert moved.input_ids.device.type == moved.labels.device.type == "meta"
    assert moved.sop_labels is None
    assert moved.samples == batch.samples
