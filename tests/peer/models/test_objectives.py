"""Losses and gradients equal transformers' on the same batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coordinator.checkpoints.probe import probe_tensors
from peer.config.run import RunConfig
from peer.data.batching.batches import parts_of
from peer.data.batching.samples import IGNORED
from peer.models.objectives import ROWS, compute_losses, label_rows, summed_cross_entropy
from tests.support.tiny_albert import LENGTH, gradients, random_batch, tiny_config, tiny_model, transformers_outputs
from tests.support.tiny_families import NAMES, family_batch, family_config, family_model


def test_a_sample_without_an_order_adds_nothing_to_its_loss() -> None:
    """So a batch's loss is the mean of its parts' losses, however it is divided; none is left where nobody has one."""
    config = tiny_config()
    model, batch = tiny_model(config), random_batch(0)
    assert batch.sop_labels is not None
    labels = batch.sop_labels.clone()
    labels[0] = IGNORED
    halves = [compute_losses(model, part, config).sop for part in parts_of(replace(batch, sop_labels=labels), 1)]
    found = compute_losses(model, replace(batch, sop_labels=labels), config).sop
    assert found is not None
    assert halves[0] == 0
    torch.testing.assert_close(found, torch.stack([loss for loss in halves if loss is not None]).mean())
    nobody = compute_losses(model, replace(batch, sop_labels=torch.full_like(labels, IGNORED)), config)
    assert nobody.sop == 0
    torch.testing.assert_close(nobody.total, nobody.mlm)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_albert_learns_as_in_transformers(padded: bool, groups: int) -> None:
    """Loss and gradients are those of transformers' forward, and the loss is the sum of its two parts."""
    config = tiny_config(num_hidden_groups=groups)
    model, batch = tiny_model(config), random_batch(4, padded=padded)
    losses = compute_losses(model, batch, config)
    losses.total.backward()
    ours = gradients(model)
    model.zero_grad()
    theirs = transformers_outputs(model, batch).loss
    theirs.backward()
    assert losses.sop is not None
    torch.testing.assert_close(losses.total, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses.total, losses.mlm + losses.sop)
    torch.testing.assert_close(ours, gradients(model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_learns_as_in_transformers(name: str) -> None:
    """Loss and gradients are those that transformers computes from the same batch, labels given in its own way."""
    config = family_config(name)
    model, batch = family_model(config), family_batch(config)
    for module in model.modules():
        if hasattr(module, "hash_seed"):
            module.hash_seed = 0  # Reformer hashes at random: here both times alike
    loss = compute_losses(model, batch, config).total
    loss.backward()
    ours = gradients(model)
    model.zero_grad()
    theirs = model(**probe_tensors(batch, config)).loss
    theirs.backward()
    torch.testing.assert_close(loss, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, gradients(model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_is_rounding_noise(name: str) -> None:
    """Whatever is trained has a gradient that means something, and what has none is not trained."""
    config = family_config(name)
    model = family_model(config).double()
    compute_losses(model, family_batch(config), config).total.backward()
    for parameter, tensor in model.named_parameters():
        if tensor.grad is None:
            assert not tensor.requires_grad or ".key.bias" in parameter  # ALBERT's is detached
            continue
        parts = tensor.grad.chunk(3) if "c_attn.bias" in parameter else [tensor.grad]  # query, key, value
        sizes = [float(part.abs().max()) for part in parts]
        assert all(size > 1e-8 for size in sizes[::2]), parameter
        assert sizes[1:2] in ([], [0.0])


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


def test_padded_rows_are_ignored_and_few_shapes_occur() -> None:
    """Batches with different numbers of masked positions meet in one shape, whose extra rows carry no label."""
    batches = [random_batch(seed) for seed in range(4)]
    assert len({len(batch.label_positions) for batch in batches}) > 1
    for batch in batches:
        wanted, labels = label_rows(batch, firsts=batch.samples)
        assert len(wanted) == ROWS
        assert len(labels) == ROWS - batch.samples
        assert wanted[: batch.samples].tolist() == [0, LENGTH, 2 * LENGTH]  # each sample's [CLS]
        assert torch.equal(labels[: len(batch.labels)], batch.labels)
        assert (labels[len(batch.labels) :] == IGNORED).all()


def test_many_logits_are_computed_part_by_part() -> None:
    """Loss and gradients of many rows do not depend on how many of them are held in memory at once."""
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 50)
    hidden = torch.randn(3 * ROWS + 7, 8, requires_grad=True)
    labels = torch.randint(0, 50, (len(hidden),))
    labels[5:20] = IGNORED
    most_rows = 0

    def to_logits(rows: torch.Tensor) -> torch.Tensor:
        nonlocal most_rows
        most_rows = max(most_rows, len(rows))
        logits: torch.Tensor = head(rows)
        return logits

    results = []
    for rows_at_once in (ROWS, len(hidden)):
        loss = summed_cross_entropy(to_logits, hidden, labels, rows_at_once)
        results.append((loss, *torch.autograd.grad(loss, [hidden, *head.parameters()])))
        assert most_rows == rows_at_once
    for part_by_part, at_once in zip(*results, strict=True):
        torch.testing.assert_close(part_by_part, at_once)
