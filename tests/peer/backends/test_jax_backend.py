"""Gradients in JAX are PyTorch's, on one device and divided among eight simulated ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from peer.backends.jax_backend import PLACES, JaxBackend, divide
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.batching.samples import IGNORED
from tests.support.tiny_albert import gradients, random_batch, tiny_config, tiny_model, transformers_outputs
from tests.support.tiny_families import family_batch, family_config, family_model

TOLERANCE = 1e-5
EXACT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def jax_backend(config: RunConfig, model: torch.nn.Module, devices: int) -> JaxBackend:
    backend = JaxBackend(config, model, jax.devices()[:devices])
    assert backend.replicas == devices
    return backend


def padded(batch: Batch) -> Batch:
    """The batch, as if a third of its first sample were padding."""
    attention_mask = torch.ones_like(batch.input_ids)
    attention_mask[0, -batch.input_ids.shape[1] // 3 :] = 0
    return replace(batch, attention_mask=attention_mask)


@pytest.mark.parametrize(
    ("devices", "family", "shape"),
    [
        (1, "albert", {}),
        (8, "albert", {}),
        (8, "albert", {"num_hidden_groups": 2, "num_hidden_layers": 4}),
        (8, "bert", {}),
        (8, "roberta", {}),
    ],
)
def test_gradients_are_pytorchs(devices: int, family: str, shape: dict[str, Any]) -> None:
    """Of padded samples, of microbatches that do not divide evenly, of shared and of separate layers."""
    config = family_config(family, **shape, **EXACT)
    batches = [padded(family_batch(config, 1, samples=11)), family_batch(config, 2, samples=11)]
    model, expected = family_model(config), family_model(config)
    backends = [jax_backend(config, model, devices), TorchBackend(config, expected)]
    for backend in backends:
        for batch in batches:
            backend.accumulate(batch)
        backend.collect()
    found = gradients(model)
    for name, gradient in gradients(expected).items():
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, and is not computed
            torch.testing.assert_close(found[name], gradient, rtol=TOLERANCE, atol=TOLERANCE, msg=name)


def test_losses_are_pytorchs() -> None:
    """Total and parts are reported as the PyTorch backend reports them, also of samples without an order."""
    config = tiny_config()
    model, batch = tiny_model(config), random_batch(3, samples=5)
    assert batch.sop_labels is not None
    batch.sop_labels[1] = IGNORED
    expected = TorchBackend(config, model).accumulate(batch)
    found = jax_backend(config, model, 8).accumulate(batch)
    assert found.finite
    assert (found.samples, found.mlm_loss) == (5, pytest.approx(expected.mlm_loss, abs=TOLERANCE))
    assert (found.loss, found.sop_loss) == (
        pytest.approx(expected.loss, abs=TOLERANCE),
        pytest.approx(expected.sop_loss, abs=TOLERANCE),
    )


def test_without_sentence_order_its_weights_stay_at_home() -> None:
    """The masked-LM objective alone: no order loss, no gradient for pooler and classifier."""
    config = tiny_config()
    config = config.model_copy(update={"objective": config.objective.model_copy(update={"name": "mlm"})})
    model = tiny_model(config)
    backend = jax_backend(config, model, 8)
    assert backend.accumulate(random_batch(1, sop=False)).sop_loss is None
    backend.collect()
    assert model.albert.pooler.weight.grad is None


def test_gradients_are_added_in_place_and_only_once() -> None:
    """The swarm's buffers stay the same tensors, and collecting twice adds nothing."""
    config = tiny_config()
    model = tiny_model(config)
    buffers = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = buffers[name]
    backend = jax_backend(config, model, 8)
    backend.accumulate(random_batch(1))
    backend.collect()
    once = gradients(model)
    backend.collect()
    assert all(parameter.grad is buffers[name] for name, parameter in model.named_parameters())
    assert all(torch.equal(gradient, once[name]) for name, gradient in gradients(model).items())


def test_what_is_not_finite_adds_nothing() -> None:
    """A microbatch that blows up is dropped as a whole, on all devices, and what was accumulated stays."""
    config = tiny_config()
    model = tiny_model(config)
    backend = jax_backend(config, model, 8)
    backend.accumulate(random_batch(1))
    backend.collect()
    before = gradients(model)
    with torch.no_grad():
        model.predictions.bias[7] = math.nan
    backend.synchronize()
    result = backend.accumulate(random_batch(2))
    backend.collect()
    assert not result.finite
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(model).items())


def test_synchronize_takes_new_parameters_and_forgets_gradients() -> None:
    """After a global step the devices compute with the swarm's parameters, and nothing old is left."""
    config = tiny_config()
    model, batch = tiny_model(config), random_batch(1)
    backend = jax_backend(config, model, 8)
    before = backend.accumulate(batch).loss
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    backend.synchronize()
    backend.collect()
    assert all(not gradient.any() for gradient in gradients(model).values())
    assert backend.accumulate(batch).loss == pytest.approx(transformers_outputs(model, batch).loss.item(), abs=1e-5)
    assert abs(backend.accumulate(batch).loss - before) > 1e-3


def test_bfloat16_is_close() -> None:
    """As on a TPU: products in bfloat16 give nearly the same loss and direction."""
    config = tiny_config()
    model, batch = tiny_model(config), random_batch(5, samples=8)
    expected = TorchBackend(config, model).accumulate(batch)
    exact = torch.cat([gradient.flatten() for gradient in gradients(model).values()])
    model.zero_grad()
    backend = JaxBackend(config, model, jax.devices(), jax.numpy.bfloat16)
    assert backend.accumulate(batch).loss == pytest.approx(expected.loss, rel=0.02)
    backend.collect()
    rough = torch.cat([gradient.flatten() for gradient in gradients(model).values()])
    assert torch.nn.functional.cosine_similarity(exact, rough, dim=0) > 0.99


def test_dropout_differs_between_microbatches_and_devices() -> None:
    """The same microbatch twice gives two losses, as in PyTorch."""
    config = tiny_config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    backend = jax_backend(config, tiny_model(config), 8)
    batch = random_batch(1, samples=8)
    assert backend.accumulate(batch).loss != backend.accumulate(batch).loss


def test_few_shapes_are_compiled() -> None:
    """Batches with other numbers of masked tokens have one shape."""
    shapes = {divide(random_batch(seed, samples=8), replicas=8).positions.shape for seed in range(20)}
    assert shapes == {(8, PLACES)}


def test_places_are_counted_within_their_samples() -> None:
    """Each label stands beside its place, and what fills the shape is not counted."""
    batch = random_batch(6, samples=5)
    shard = divide(batch, replicas=4)
    rows, columns = np.nonzero(np.asarray(shard.counted))
    flat = rows * batch.input_ids.shape[1] + np.asarray(shard.positions)[rows, columns]
    assert flat.tolist() == batch.label_positions.tolist()
    assert np.asarray(shard.labels)[rows, columns].tolist() == batch.labels.tolist()
    assert np.asarray(shard.real).tolist() == [1.0] * 5 + [0.0] * 3
