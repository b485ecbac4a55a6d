"""ELECTRA's objective: losses and gradients of an independent implementation, what is drawn, and what is published."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from transformers import AutoModelForPreTraining, PreTrainedModel

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.probe import probe_loss, probe_tensors
from coordinator.checkpoints.writing import config_files, restore_verified, take_snapshot, write_checkpoint
from coordinator.publishing.cards import write_card
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, parts_of
from peer.models.build import build_model
from peer.models.checkpoint_state import restore_model, restore_optimizer
from peer.models.held_out import evaluate
from peer.models.objectives import compute_losses
from peer.models.optimizer_setup import build_optimizer, parameter_groups
from peer.models.replaced_tokens import EMBEDDINGS, ReplacedTokens, draw_tokens
from tests.support.model_cards import facts
from tests.support.tiny_albert import gradients
from tests.support.tiny_families import SPECIAL, VOCABULARY, family_batch, family_config, family_model

WEIGHT = 7.0


def rtd_config(**objective: float) -> RunConfig:
    """A run of this objective, trained in milliseconds."""
    content = family_config("electra").model_dump()
    objective = {"generator_size": 0.5, "discriminator_weight": WEIGHT, **objective}
    return RunConfig.from_mapping({**content, "objective": {"name": "rtd", **objective}})


def rtd_model(config: RunConfig) -> ReplacedTokens:
    """The run's models, with larger weights than fresh ones have."""
    model = family_model(config)
    assert isinstance(model, ReplacedTokens)
    return model


def rtd_batch(config: RunConfig, seed: int = 0, samples: int = 3) -> Batch:
    """A random batch with the numbers by which tokens are drawn."""
    batch = family_batch(config, seed, samples)
    generator = torch.Generator().manual_seed(100 + seed)
    return replace(batch, draws=torch.rand(len(batch.labels), generator=generator))


def expected_losses(model: ReplacedTokens, batch: Batch) -> tuple[Tensor, Tensor]:
    """L_MLM and L_disc by transformers' own forwards, one masked token after another, as the papers write them."""
    assert batch.draws is not None
    outputs = model.generator(batch.input_ids, token_type_ids=batch.token_type_ids)
    corrupt, labels, losses = batch.input_ids.clone(), torch.zeros_like(batch.input_ids), []
    for place, label, number in zip(batch.label_positions.tolist(), batch.labels, batch.draws.tolist(), strict=True):
        row, column = divmod(place, batch.input_ids.shape[1])
        shares = outputs.logits[row, column].softmax(-1)
        losses.append(-shares[label].log())
        reached, token = 0.0, -1
        while reached <= number:
            token += 1
            reached += float(shares[token].detach())
        corrupt[row, column], labels[row, column] = token, token != label
    shared = model.generator.electra.embeddings.word_embeddings.weight
    own = dict(model.discriminator.named_parameters())
    weights = {**own, EMBEDDINGS: shared.detach() + own[EMBEDDINGS]}
    kwargs = {"input_ids": corrupt, "labels": labels, "token_type_ids": batch.token_type_ids}
    found = functional_call(model.discriminator, weights, kwargs=kwargs)
    return torch.stack(losses).mean(), found.loss


@pytest.mark.parametrize("seed", range(2))
def test_losses_and_gradients_are_those_of_the_papers(seed: int) -> None:
    """L_MLM + lambda * L_disc, with embeddings shared by a stopped gradient and a difference."""
    config = rtd_config()
    model, batch = rtd_model(config), rtd_batch(config, seed)
    losses = compute_losses(model, batch, config)
    losses.total.backward()
    ours = gradients(model)
    model.zero_grad()
    mlm, detection = expected_losses(model, batch)
    (mlm + WEIGHT * detection).backward()
    torch.testing.assert_close(losses.mlm, mlm, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses.detection, WEIGHT * detection, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses.total, losses.mlm + losses.detection)
    torch.testing.assert_close(ours, gradients(model), rtol=1e-3, atol=1e-5)


def test_the_discriminator_sends_no_gradient_into_the_generator() -> None:
    """The generator learns from its masked tokens alone, its embeddings too."""
    config = rtd_config()
    model, batch = rtd_model(config), rtd_batch(config)
    losses = compute_losses(model, batch, config)
    assert losses.detection is not None
    trained = [parameter for parameter in model.generator.parameters() if parameter.requires_grad]
    assert all(gradient is None for gradient in torch.autograd.grad(losses.detection, trained, allow_unused=True))


def test_tokens_are_drawn_from_the_softmax() -> None:
    """Numbers spread evenly over [0, 1) give each token as often as its share; the highest number stays in range."""
    logits = torch.tensor([[0.0, 2.0, -1.0, 1.0]])
    count = 10_000
    draws = (torch.arange(count) + 0.5) / count
    tokens = draw_tokens(lambda rows: rows, logits.expand(count, 4), draws, rows_at_once=999)
    shares = torch.bincount(tokens, minlength=4) / count
    torch.testing.assert_close(shares, logits.softmax(-1)[0], rtol=0, atol=2e-4)
    highest = torch.tensor([1.0]).nextafter(torch.tensor([0.0]))
    assert draw_tokens(lambda rows: rows, logits, highest, rows_at_once=64).tolist() == [3]
    assert draw_tokens(lambda rows: rows, logits[:0], highest[:0], rows_at_once=64).tolist() == []


def test_the_trainers_step_does_not_depend_on_the_division_of_a_microbatch() -> None:
    """Gradients of a microbatch are the sums over its samples, and parts of it draw the same tokens."""
    config = rtd_config()
    model = rtd_model(config)
    divided = deepcopy(model)
    whole, parts = TorchBackend(config, model), TorchBackend(config, divided)
    batch = rtd_batch(config, samples=4)
    result = whole.accumulate(batch)
    assert result.finite
    assert result.sop_loss is None
    with torch.no_grad():
        losses = compute_losses(model, batch, config)
    assert result.loss == pytest.approx(float(losses.total), rel=1e-5)
    assert result.mlm_loss == pytest.approx(float(losses.mlm), rel=1e-5)
    parts._passes._at_once = 1  # as after memory ran out
    assert parts.accumulate(batch).loss == pytest.approx(result.loss, rel=1e-5)
    torch.testing.assert_close(gradients(model), gradients(divided), rtol=1e-3, atol=1e-4)


def test_an_optimizer_step_trains_both_models_as_one() -> None:
    """All trained parameters of both are in the optimizer and change, the difference of the embeddings too."""
    config = rtd_config()
    model = build_model(config, VOCABULARY, SPECIAL)
    before = {name: value.clone() for name, value in model.named_parameters() if value.requires_grad}
    optimizer = build_optimizer(config, parameter_groups(model, config))
    TorchBackend(config, model).accumulate(rtd_batch(config))
    optimizer.step()
    after = dict(model.named_parameters())
    assert {name.partition(".")[0] for name in before} == {"generator", "discriminator"}
    assert [name for name, value in before.items() if torch.equal(value, after[name])] == []


def checkpoint(model: PreTrainedModel, config: RunConfig, folder: Path) -> StoredCheckpoint:
    """A checkpoint as the keeper writes it."""
    optimizer = build_optimizer(config, parameter_groups(model, config))
    (folder / "tokenizer").mkdir()
    batch = rtd_batch(config)
    return write_checkpoint(
        folder,
        take_snapshot(3, model, optimizer),
        run="tiny",
        era=0,
        texts=config_files(model),
        tokenizer_dir=folder / "tokenizer",
        probe=probe_tensors(batch, config),
        probe_loss=probe_loss(model, batch, config),
        created_at=0.0,
    )


def test_plain_transformers_loads_the_discriminator_and_the_generator_beside(tmp_path: Path) -> None:
    """Nothing is missing or left over, the probe has the manifest's loss, and the generator fills as in training."""
    config = rtd_config()
    model, batch = rtd_model(config), rtd_batch(config)
    stored = checkpoint(model, config, tmp_path)
    loaded, report = AutoModelForPreTraining.from_pretrained(stored.path, output_loading_info=True)
    assert type(loaded).__name__ == "ElectraForPreTraining"
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    probe = load_file(stored.path / "probe.safetensors")
    assert 0 < int(probe["labels"].sum()) <= len(batch.labels)
    with torch.no_grad():
        assert float(loaded.eval()(**probe).loss) == pytest.approx(stored.manifest.probe_loss, rel=1e-5)
    said: dict[str, Any] = {}
    (code,) = re.findall(r"is included:\n\n```python\n(.*?)```", write_card(facts(config)), re.DOTALL)
    exec(code.replace('"DIR"', repr(str(stored.path))), said)  # noqa: S102 - the card's own words
    with torch.no_grad():
        ours = model.generator.eval()(batch.input_ids).logits
        torch.testing.assert_close(said["generator"].eval()(batch.input_ids).logits, ours)


def test_a_checkpoint_restores_both_models_bit_by_bit(tmp_path: Path) -> None:
    """Also for the validator, which verifies the files that it reads: a damaged one is refused."""
    config = rtd_config()
    model = rtd_model(config)
    stored = checkpoint(model, config, tmp_path)
    for restore in (restore_model, lambda fresh, path: restore_verified(fresh, path, stored.manifest_sha256)):
        fresh = build_model(config, VOCABULARY, SPECIAL)
        restore(fresh, stored.path)
        for name, value in model.state_dict().items():
            assert torch.equal(fresh.state_dict()[name], value), name
    optimizer = build_optimizer(config, parameter_groups(fresh, config))
    restore_optimizer(fresh, optimizer, stored.path)


def test_held_out_text_measures_the_discriminator() -> None:
    """Accuracy and F1 of the replaced tokens, summed over parts, are those of all predictions at once."""
    config = rtd_config()
    model, batch = rtd_model(config), rtd_batch(config, samples=5)
    found = evaluate(model, batch)
    assert found is not None
    counts = torch.zeros(2, 2)
    for part in parts_of(batch, 2):
        assert part.draws is not None
        with torch.no_grad():
            logits = model.generator(part.input_ids, token_type_ids=part.token_type_ids).logits
            shares = logits.flatten(0, 1)[part.label_positions].softmax(-1).cumsum(-1)
            tokens = (shares < part.draws[:, None]).sum(-1)
            ids, replaced = part.input_ids.flatten().clone(), torch.zeros(part.input_ids.numel(), dtype=torch.long)
            ids[part.label_positions], replaced[part.label_positions] = tokens, (tokens != part.labels).long()
            called = (model.detection_logits(ids.view_as(part.input_ids), part) > 0).long().flatten()
        counts += functional.one_hot(2 * replaced + called, 4).sum(0).view(2, 2)
    (true_negative, false_positive), (missed, hit) = counts.tolist()
    assert found.detection_accuracy == pytest.approx((true_negative + hit) / counts.sum().item())
    assert found.detection_f1 == pytest.approx(2 * hit / (2 * hit + missed + false_positive))
    assert found.detection_loss is not None
    assert found == evaluate(model, batch)
