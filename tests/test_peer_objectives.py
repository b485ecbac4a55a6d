"""Losses and gradients equal transformers' on the same batch."""

from __future__ import annotations

import pytest
import torch

from peer.objectives import compute_losses
from peer.run_config import RunConfig
from tests.tiny_albert import gradients, random_batch, tiny_config, tiny_model, transformers_outputs


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_loss_equals_transformers(seed: int, padded: bool) -> None:
    """The total is transformers' loss for the same batch and labels, and the sum of its two parts."""
    config = tiny_config()
    model, batch = tiny_model(config), random_batch(seed, padded=padded)
    losses = compute_losses(model, batch, config)
    assert losses.sop is not None
    torch.testing.assert_close(losses.total, transformers_outputs(model, batch).loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses.total, losses.mlm + losses.sop)


@pytest.mark.parametrize("padded", [False, True])
def test_gradients_equal_transformers(padded: bool) -> None:
    """Every parameter's gradient is the one of transformers' forward."""
    config = tiny_config(num_hidden_groups=3)
    model, batch = tiny_model(config), random_batch(4, padded=padded)
    compute_losses(model, batch, config).total.backward()
    ours = gradients(model)
    model.zero_grad()
    transformers_outputs(model, batch).loss.backward()
    for name, theirs in gradients(model).items():
        torch.testing.assert_close(
            ours[name], theirs, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_key_bias_has_no_gradient() -> None:
    """The key's bias, which softmax ignores, gets no rounding noise that LAMB would turn into steps."""
    config = tiny_config()
    model = tiny_model(config)
    compute_losses(model, random_batch(1), config).total.backward()
    attention = model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    assert attention.key.bias.grad is None
    assert attention.query.bias.grad.abs().max() > 0


def test_without_sentence_order_only_masked_tokens_count() -> None:
    """The objective `mlm` has no order loss, and its total is the masked tokens' mean."""
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "objective": {"name": "mlm"}})
    model = tiny_model(config)
    losses = compute_losses(model, random_batch(1, sop=False), config)
    with_order = compute_losses(model, random_batch(1), tiny_config())
    assert losses.sop is None
    assert losses.total == losses.mlm
    torch.testing.assert_close(losses.mlm, with_order.mlm)


def test_batch_without_label_positions_is_no_accident() -> None:
    """Where nothing is masked the masked-token loss is zero, not NaN, and has a gradient of zero."""
    config = tiny_config()
    model = tiny_model(config)
    losses = compute_losses(model, random_batch(1, masked=False), config)
    assert losses.mlm == 0
    losses.total.backward()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(model).values())


def test_missing_order_labels_are_an_error() -> None:
    """A batch that does not fit the objective is refused by name instead of training on half of it."""
    config = tiny_config()
    with pytest.raises(ValueError, match="sop_labels"):
        compute_losses(tiny_model(config), random_batch(1, sop=False), config)
