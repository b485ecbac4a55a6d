"""Gradients add up to a sum over samples, what is not finite stays out, and memory that ends costs no sample."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AlbertForPreTraining

from auth.errors import MemoryLimitError
from peer.backends.passes import Counts, to_device
from peer.backends.torch_cpu import TorchBackend
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import save_memory
from peer.models.objectives import Losses, compute_losses
from peer.runtime.devices import FIRST_SCALE, LossScale
from tests.support import short_of_memory
from tests.support.tiny_albert import gradients, random_batch, tiny_config, tiny_model, transformers_outputs
from tests.support.tiny_families import family_batch, family_config, family_model
from tests.support.zygote import forking_python


def test_gradient_is_the_sum_over_samples() -> None:
    """Two microbatches leave, for each, its mean loss's gradient times its samples in `.grad`; losses are reported."""
    config = tiny_config()
    model = tiny_model(config)
    batches = [random_batch(1, samples=2), random_batch(2, samples=5)]
    losses = [transformers_outputs(model, batch).loss for batch in batches]
    for loss, batch in zip(losses, batches, strict=True):
        (loss * batch.samples).backward()
    expected = gradients(model)
    model.zero_grad()
    backend = TorchBackend(config, model)
    for loss, batch in zip(losses, batches, strict=True):
        result = backend.accumulate(batch)
        assert (result.samples, result.finite) == (batch.samples, True)
        assert result.loss == pytest.approx(loss.item(), abs=1e-5)
        assert result.sop_loss is not None
        assert result.loss == pytest.approx(result.mlm_loss + result.sop_loss, abs=1e-5)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-3, atol=1e-4)


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


def break_loss(model: AlbertForPreTraining) -> None:
    with torch.no_grad():
        model.predictions.bias.fill_(math.nan)


def break_gradient(model: AlbertForPreTraining) -> None:
    model.albert.pooler.weight.register_hook(lambda gradient: gradient * math.nan)


BREAKING = pytest.mark.parametrize("break_model", [break_loss, break_gradient])


@BREAKING
def test_what_is_not_finite_leaves_what_was_accumulated(break_model: Callable[[AlbertForPreTraining], None]) -> None:
    """A microbatch whose loss blows up, or only its gradient, is dropped as a whole."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model)
    backend.accumulate(random_batch(1))
    before = gradients(model)
    break_model(model)
    result = backend.accumulate(random_batch(2))
    assert not result.finite
    assert math.isfinite(result.loss) == (break_model is break_gradient)
    assert all(torch.equal(gradient, before[name]) for name, gradient in gradients(model).items())


def test_batch_moves_to_the_device_whole() -> None:
    """Every tensor of the batch goes to the accelerator; what is absent stays absent; the CPU copies nothing."""
    batch = random_batch(1, sop=False)
    assert to_device(batch, torch.device("cpu")) is batch
    moved = to_device(batch, torch.device("meta"))
    assert moved.input_ids.device.type == moved.labels.device.type == "meta"
    assert moved.sop_labels is None
    assert moved.samples == batch.samples


class Operations(TorchDispatchMode):
    """The operations that are called, with the shapes of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[tuple[str, tuple[torch.Size, ...]]] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = tuple(value.shape for value in args if isinstance(value, torch.Tensor))
        self.called.append((func.overloadpacket.__name__, shapes))
        return func(*args, **(kwargs or {}))


def test_no_number_is_read_from_the_device_while_a_microbatch_is_computed() -> None:
    """Losses and norm are read together at the end: each read waits until an accelerator has done all it was told."""
    config = tiny_config()
    passes = TorchBackend(config, tiny_model(config))._passes
    passes._at_once = 2
    batch = random_batch(1, samples=5)
    with Operations() as operations:
        share = passes._in_parts(batch, Counts.of(batch), 1.0)
    assert share.finite
    assert "_local_scalar_dense" not in dict(operations.called)


def test_shared_weights_are_cast_once_a_microbatch() -> None:
    """However many layers share them; and so their gradients are cast back once."""
    config, batch = tiny_config(), random_batch(1)
    model = tiny_model(config)
    hidden = model.config.hidden_size
    with Operations() as operations:
        TorchBackend(config, model, precision="bf16").accumulate(batch)
    casts = [shapes for name, shapes in operations.called if name == "_to_copy"]
    assert model.config.num_hidden_layers > 1
    assert casts.count((torch.Size((3 * hidden, hidden)),)) == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", [name for name in ARCHITECTURES if name != "reformer"])  # which hashes at random
def test_low_precision_is_close(family: str, precision: Any) -> None:
    """Losses and the gradient's direction are nearly those of float32, and the loss scale is not seen in them."""
    config = family_config(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = family_batch(config, 4, samples=8)
    exact = family_model(config)
    expected = TorchBackend(config, exact).accumulate(batch)
    rough = family_model(config)
    backend = TorchBackend(config, rough, precision=precision)
    result = backend.accumulate(batch)
    assert result.finite
    assert result.loss == pytest.approx(expected.loss, rel=0.02)
    assert precision in backend.description
    left, right = (torch.cat([g.flatten() for g in gradients(model).values()]) for model in (exact, rough))
    assert torch.nn.functional.cosine_similarity(left, right, dim=0) > 0.99
    assert right.norm() == pytest.approx(float(left.norm()), rel=0.05)
    assert all(parameter.dtype == torch.float32 for parameter in rough.parameters())


def test_each_microbatch_that_overflows_halves_the_loss_scale_once() -> None:
    """No sample is lost, however far each one had to go down; so one outlier is made up for by one doubling."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model, precision="fp16")
    backend._passes.scale.value = 2.0**32
    for seed in range(3):
        assert backend.accumulate(random_batch(seed, samples=8)).finite
    assert backend._passes.scale.value == 2.0**29
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


@BREAKING
def test_what_no_loss_scale_can_mend_leaves_it_alone(break_model: Callable[[AlbertForPreTraining], None]) -> None:
    """A loss that is not finite, or a gradient that is not at a scale of 1 either, is no overflow."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model, precision="fp16")
    break_model(model)
    for seed in range(3):
        assert not backend.accumulate(random_batch(seed)).finite
    assert backend._passes.scale.value == FIRST_SCALE


def test_loss_scale_is_pytorchs() -> None:
    """It begins, falls and rises as PyTorch's own does, and never falls below 1; float32 and bfloat16 have none."""
    assert LossScale("fp32").value == LossScale("bf16").value == 1.0
    ours = LossScale("fp16")
    pytorchs = torch.amp.GradScaler("cpu")
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    good = [True] * 1999
    for finite in [True, False, *good, False, *good, True, *good, False, True]:
        parameter.grad = torch.full((1,), 1.0 if finite else math.inf)
        pytorchs.scale(parameter)
        pytorchs.step(optimizer)
        pytorchs.update()
        ours.succeeded() if finite else ours.lower()
        assert ours.value == pytorchs.get_scale()
    for _ in range(40):
        ours.lower()
    assert ours.value == 1.0
    full = LossScale("fp32")
    for _ in range(4000):
        full.succeeded()
    assert full.value == 1.0


def test_gradient_checkpointing_changes_no_gradient() -> None:
    """Layers computed twice give the same numbers; ALBERT's forward of our own heeds it."""
    config, batch = tiny_config(), random_batch(2, samples=4)
    kept, twice = tiny_model(config), tiny_model(config)
    assert save_memory(twice)
    assert not save_memory(twice)
    calls = []
    twice.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.LayerNorm.register_forward_hook(
        lambda *_: calls.append(1)
    )
    for model in kept, twice:
        TorchBackend(config, model).accumulate(batch)
    assert len(calls) == 2 * config.model.num_hidden_layers - 1  # all but the last layer twice
    torch.testing.assert_close(gradients(twice), gradients(kept))


@pytest.mark.thorough
def test_memory_that_ends_costs_no_sample() -> None:
    """A microbatch for which the allocator has no room is computed in parts, to the same gradient and loss."""
    with forking_python():
        command = [sys.executable, short_of_memory.__file__, "300"]
        finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found, expected = json.loads(finished.stdout), short_of_memory.train()
    assert found["norm"] == pytest.approx(expected["norm"], rel=1e-5)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert (found["is_divided"], expected["is_divided"]) == (True, False)


@pytest.fixture
def room_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Simulates an accelerator that has memory for so many samples at once."""

    def limit(samples: int) -> None:
        def compute_within(model: Any, batch: Batch, config: RunConfig) -> Losses:
            if batch.samples > samples:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore follows.")
            return compute_losses(model, batch, config)

        monkeypatch.setattr("peer.backends.passes.compute_losses", compute_within)

    return limit


@pytest.mark.parametrize("room", [1, 3, 10])
def test_parts_of_a_microbatch_add_up_to_it(room_for: Callable[[int], None], room: int) -> None:
    """However small the parts, losses and gradient are the whole microbatch's; each sample counts once."""
    config, batch = tiny_config(), random_batch(3, samples=11, padded=True)
    whole, divided = tiny_model(config), tiny_model(config)
    expected = TorchBackend(config, whole).accumulate(batch)
    room_for(room)
    found = TorchBackend(config, divided).accumulate(batch)
    assert (found.samples, found.loss) == (11, pytest.approx(expected.loss, abs=1e-5))
    assert (found.mlm_loss, found.sop_loss) == (
        pytest.approx(expected.mlm_loss, abs=1e-5),
        pytest.approx(expected.sop_loss, abs=1e-5),
    )
    torch.testing.assert_close(gradients(divided), gradients(whole), rtol=1e-3, atol=1e-4)


def test_largest_microbatch_is_found_by_trying(room_for: Callable[[int], None]) -> None:
    """Doubling, then half a step back up; what was tried leaves no gradient."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model)
    room_for(13)
    assert backend._passes.find_fitting_size(100, lambda samples: random_batch(1, samples=samples)) == 12
    assert backend._passes.find_fitting_size(5, lambda samples: random_batch(1, samples=samples)) == 4
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_one_sample_that_does_not_fit_is_one_clear_error(room_for: Callable[[int], None]) -> None:
    """Layers are computed twice before giving up; the sentence says what the allocator said."""
    config = tiny_config()
    model = tiny_model(config)
    backend = TorchBackend(config, model)
    room_for(0)
    with pytest.raises(MemoryLimitError, match=r"Not even one sample.*Tried to allocate 2.00 GiB.\)"):
        backend.accumulate(random_batch(1, samples=2))
    assert not save_memory(model)  # it is done already
    with pytest.raises(MemoryLimitError):
        backend._passes.find_fitting_size(2, lambda samples: random_batch(1, samples=samples))
