"""The fast way to run ALBERT computes the same as transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AlbertForPreTraining

from peer.albert import encode, order_logits, token_logits
from peer.data.batches import Batch
from tests.support.tiny_albert import LENGTH, random_batch, tiny_config, tiny_model, transformers_outputs


def both_logits(model: AlbertForPreTraining, batch: Batch) -> tuple[Tensor, Tensor]:
    """What the two heads say: (m, vocabulary) at the masked positions and (b, 2) for the samples' order."""
    first = torch.arange(batch.samples) * LENGTH
    hidden = encode(model, batch, torch.cat([first, batch.label_positions]))
    return token_logits(model, hidden[batch.samples :]), order_logits(model, hidden[: batch.samples])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_heads_equal_transformers(padded: bool, groups: int) -> None:
    """At the masked positions and for the order, the logits are transformers' own, with padding and without."""
    model, batch = tiny_model(tiny_config(num_hidden_groups=groups)), random_batch(1, padded=padded)
    tokens, order = both_logits(model, batch)
    expected = transformers_outputs(model, batch)
    masked = expected.prediction_logits.flatten(0, 1)[batch.label_positions]
    torch.testing.assert_close(tokens, masked, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(order, expected.sop_logits, rtol=1e-4, atol=1e-5)


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


def test_saved_model_loads_in_plain_transformers(tmp_path: Path) -> None:
    """`from_pretrained` gives a model with the same outputs, and finds nothing missing or left over."""
    model, batch = tiny_model(tiny_config()).eval(), random_batch(2)
    model.save_pretrained(tmp_path)
    loaded, report = AlbertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    theirs = transformers_outputs(loaded.eval(), batch).prediction_logits.flatten(0, 1)[batch.label_positions]
    torch.testing.assert_close(both_logits(model, batch)[0], theirs, rtol=1e-4, atol=1e-5)
