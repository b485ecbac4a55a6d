"""The model is transformers' own; the fast way to run it computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AlbertForPreTraining

from peer.models import IGNORED, ROWS, build_model, run_heads
from peer.run_config import RunConfig
from tests.tiny_albert import PAD, VOCABULARY, random_batch, tiny_config, tiny_model, transformers_outputs


def test_every_machine_builds_the_same_model() -> None:
    """The initial weights come from the run's seed, whatever the state of the global generator, which is left alone."""
    torch.manual_seed(1)
    first = build_model(tiny_config(), VOCABULARY, PAD).state_dict()
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    second = build_model(tiny_config(), VOCABULARY, PAD).state_dict()
    assert torch.rand(1) == expected
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_another_model() -> None:
    """Two runs do not start from the same weights."""
    config = tiny_config()
    other = RunConfig.from_mapping({**config.model_dump(), "run": {"seed": 1}})
    weights = [build_model(c, VOCABULARY, PAD).albert.embeddings.word_embeddings.weight for c in (config, other)]
    assert not torch.equal(*weights)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_heads_equal_transformers(padded: bool, groups: int) -> None:
    """At the masked positions and for the order, the logits are transformers' own, with padding and without."""
    config = tiny_config(num_hidden_groups=groups)
    model, batch = tiny_model(config), random_batch(1, padded=padded)
    heads = run_heads(model, batch)
    expected = transformers_outputs(model, batch)
    count = len(batch.label_positions)
    masked = expected.prediction_logits.flatten(0, 1)[batch.label_positions]
    torch.testing.assert_close(heads.logits[:count], masked, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads.sop_logits, expected.sop_logits, rtol=1e-4, atol=1e-5)


def test_padded_rows_are_ignored_and_few_shapes_occur() -> None:
    """Batches with different numbers of masked positions meet in one shape, whose extra rows carry no label."""
    model = tiny_model(tiny_config())
    batches = [random_batch(seed) for seed in range(4)]
    assert len({len(batch.label_positions) for batch in batches}) > 1
    heads = [run_heads(model, batch) for batch in batches]
    assert {len(head.logits) for head in heads} == {ROWS - 3}  # 3 rows are the samples' [CLS]
    for batch, head in zip(batches, heads, strict=True):
        assert torch.equal(head.labels[: len(batch.labels)], batch.labels)
        assert (head.labels[len(batch.labels) :] == IGNORED).all()


def test_dropout_is_active_in_training_only() -> None:
    """With dropout two passes differ while training, and agree with transformers in evaluation."""
    config = tiny_config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    model, batch = tiny_model(config), random_batch(1)
    assert not torch.equal(run_heads(model, batch).logits, run_heads(model, batch).logits)
    model.eval()
    expected = transformers_outputs(model, batch).sop_logits
    torch.testing.assert_close(run_heads(model, batch).sop_logits, expected, rtol=1e-4, atol=1e-5)


def test_unused_heads_are_frozen_without_sentence_order() -> None:
    """An objective without sentence order leaves pooler and classifier out of training, and nothing else."""
    config = tiny_config()
    config = RunConfig.from_mapping({**config.model_dump(), "objective": {"name": "mlm"}})
    model = build_model(config, VOCABULARY, PAD)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    modules = "albert.pooler", "sop_classifier.classifier"
    assert frozen == {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}


def test_saved_model_loads_in_plain_transformers(tmp_path: Path) -> None:
    """`from_pretrained` gives a model with the same outputs, and finds nothing missing or left over."""
    model, batch = tiny_model(tiny_config()).eval(), random_batch(2)
    model.save_pretrained(tmp_path)
    loaded, report = AlbertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    count = len(batch.label_positions)
    ours = run_heads(model, batch).logits[:count]
    theirs = transformers_outputs(loaded.eval(), batch).prediction_logits.flatten(0, 1)[batch.label_positions]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
