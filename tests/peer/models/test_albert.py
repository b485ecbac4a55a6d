"""The fast ALBERT computes the same as transformers, and the oneDNN product the same as the ordinary linear layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AlbertForPreTraining
from transformers.pytorch_utils import Conv1D

from peer.data.batching.batches import Batch
from peer.models.albert import encode, linear, order_logits, token_logits, use_onednn
from tests.support.tiny_albert import LENGTH, random_batch, tiny_config, tiny_model, transformers_outputs


@pytest.mark.parametrize("rows", [0, 1, 7, 64])
def test_equals_torchs_linear(rows: int) -> None:
    """Output and all three gradients are those of `torch.nn.functional.linear`, no rows included."""
    torch.manual_seed(0)
    tensors = [torch.randn(rows, 48), torch.randn(33, 48), torch.randn(33)]
    upstream = torch.randn(rows, 33)
    results = []
    for function in linear, functional.linear:
        arguments = [tensor.clone().requires_grad_() for tensor in tensors]
        output = function(*arguments)
        output.backward(upstream)
        results.append([output, *(argument.grad for argument in arguments)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_other_types_take_the_ordinary_way() -> None:
    """Double precision, which oneDNN does not multiply, still gets the right answer in double precision."""
    inputs, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 4), (2, 4), (2,)))
    torch.testing.assert_close(linear(inputs, weight, bias), inputs @ weight.T + bias)


def test_asks_only_for_the_gradients_that_are_wanted() -> None:
    """A frozen weight costs no product and gets no gradient."""
    weight, inputs = torch.randn(5, 4), torch.randn(3, 4, requires_grad=True)
    linear(inputs, weight, torch.zeros(5)).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(inputs.grad, weight.sum(0).expand(3, 4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [nn.Linear(48, 33), nn.Linear(48, 33, bias=False), Conv1D(33, 48)])
@pytest.mark.parametrize("shape", [(7, 48), (2, 3, 48), (0, 48)])
def test_a_models_layers_compute_what_they_did(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Inputs of any shape, with or without a bias, GPT-2's transposed weights too; names of weights stay."""
    torch.manual_seed(0)
    model = nn.Sequential(copy.deepcopy(layer), nn.ReLU())
    inputs = torch.randn(shape, requires_grad=True)
    results = []
    for prepare in (lambda _: None, use_onednn):
        prepare(model)
        outputs = model(inputs)
        results.append([outputs, *torch.autograd.grad(outputs.square().sum(), [inputs, *model.parameters()])])
        assert list(model.state_dict()) == [f"0.{name}" for name in layer.state_dict()]
    assert type(model[0]) is not type(layer)
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def both_logits(model: AlbertForPreTraining, batch: Batch) -> tuple[Tensor, Tensor]:
    """What the two heads say: (m, vocabulary) at the masked positions and (b, 2) for the samples' order."""
    first = torch.arange(batch.samples) * LENGTH
    hidden = encode(model, batch, torch.cat([first, batch.label_positions]))
    return token_logits(model, hidden[batch.samples :]), order_logits(model, hidden[: batch.samples])


def test_groups_of_several_layers_equal_transformers() -> None:
    """A group may hold more than one layer, which run one after the other."""
    model, batch = tiny_model(tiny_config(num_hidden_groups=3, options={"inner_group_num": 2})), random_batch(1)
    _, order = both_logits(model, batch)
    torch.testing.assert_close(order, transformers_outputs(model, batch).sop_logits, rtol=1e-4, atol=1e-5)


def test_dropout_is_active_in_training_only() -> None:
    """With dropout two passes differ while training, and agree with transformers in evaluation."""
    config = tiny_config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model, batch = tiny_model(config), random_batch(1)
    assert not torch.equal(both_logits(model, batch)[0], both_logits(model, batch)[0])
    model.eval()
    expected = transformers_outputs(model, batch).sop_logits
    torch.testing.assert_close(both_logits(model, batch)[1], expected, rtol=1e-4, atol=1e-5)
