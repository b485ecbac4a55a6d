"""Models are built alike on every machine and evaluated alike everywhere, whatever the family."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from auth.errors import ConfigError
from coordinator.checkpoints.probe import probe_tensors
from peer.config.architectures import ARCHITECTURES
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import RunConfig
from peer.models.build import build_model, checkpoint_config, evaluating
from peer.models.objectives import compute_losses
from tests.support.tiny_families import NAMES, SPECIAL, VOCABULARY, family_batch, family_config, family_model


def built(config: RunConfig) -> PreTrainedModel:
    """The run's model, fresh."""
    return build_model(config, VOCABULARY, SPECIAL)


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_builds_the_same_model(name: str) -> None:
    """The initial weights come from the run's seed, whatever the state of the global generator, which is left alone."""
    config = family_config(name)
    torch.manual_seed(1)
    first = built(config).state_dict()
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    second = built(config).state_dict()
    assert torch.rand(1) == expected
    assert all(torch.equal(first[name], second[name]) for name in first)


PUBLISHED = {  # millions of parameters, as the papers round them
    "albert-large": 18,
    "modernbert-small": 68,
    "modernbert-base": 149,
    "roberta-base": 125,
    "gpt2-small": 124,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_the_published_model(name: str) -> None:
    """The number of parameters is the published one within 1 %: the head counts, and shared weights count once."""
    config = load_recipe(name)
    with torch.device("meta"):
        model = build_model(config, config.tokenizer.vocab_size, SPECIAL)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == pytest.approx(1e6 * PUBLISHED[name], rel=0.01)


def test_another_seed_gives_another_model() -> None:
    """Two runs do not start from the same weights."""
    config = family_config("bert")
    other = RunConfig.from_mapping({**config.model_dump(), "run": {"seed": 1}})
    weights = [built(c).get_input_embeddings().weight for c in (config, other)]
    assert not torch.equal(*weights)


def test_unused_heads_are_frozen_without_sentence_order() -> None:
    """ALBERT without sentence order leaves pooler and classifier out of training, and nothing else."""
    config = family_config("albert")
    config = RunConfig.from_mapping({**config.model_dump(), "objective": {"name": "mlm"}})
    frozen = {name for name, parameter in built(config).named_parameters() if not parameter.requires_grad}
    modules = "albert.pooler", "sop_classifier.classifier"
    assert frozen == {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_loads_in_plain_transformers(name: str, tmp_path: Path) -> None:
    """With the checkpoint's `config.json`, transformers finds nothing missing or left over, and gives the same loss."""
    config = family_config(name)
    model, batch = family_model(config), family_batch(config)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(checkpoint_config(model)))
    kind = type(model) if name == "albert" else AutoModelForCausalLM if "gpt2" in name else AutoModelForMaskedLM
    loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        theirs = loaded.eval()(**probe_tensors(batch, config)).loss
    with evaluating(model):
        ours = compute_losses(model, batch, config).total
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "reformer", "gpt2"])
def test_evaluation_repeats_and_leaves_training_as_it_was(name: str) -> None:
    """The same weights give the same loss each time; afterwards the model trains on, and hashes at random."""
    config = family_config(name, hidden_dropout_prob=0.3)
    model, batch = family_model(config), family_batch(config)
    state = torch.get_rng_state()
    losses = []
    for _ in range(2):
        with evaluating(model):
            losses.append(compute_losses(model, batch, config).total)
    assert losses[0] == losses[1]
    assert not losses[0].requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(getattr(module, "hash_seed", None) is None for module in model.modules())


def test_a_sequence_may_be_as_long_as_the_model_allows() -> None:
    """RoBERTa's positions, counted from behind its padding's id, reach for `max_position_embeddings` tokens."""
    config = family_config("roberta")
    model, batch = built(config), family_batch(config)
    assert batch.input_ids.shape[1] == config.model.max_position_embeddings
    assert compute_losses(model, batch, config).total.isfinite()
    assert model.config.max_position_embeddings == config.model.max_position_embeddings + SPECIAL.pad + 1


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"roberta"}))
def test_a_separator_that_stands_for_padding_is_trained(name: str) -> None:
    """Where a tokenizer has no padding, no embedding is left out of training."""
    config = family_config(name)
    model, batch = build_model(config, VOCABULARY, replace(SPECIAL, pad=SPECIAL.sep)), family_batch(config)
    batch.input_ids[:, 5] = SPECIAL.sep
    compute_losses(model, batch, config).total.backward()
    embedded = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert all(module.padding_idx is None for module in embedded)
    gradient = model.get_input_embeddings().weight.grad
    assert isinstance(gradient, torch.Tensor)
    assert gradient[SPECIAL.sep].abs().sum() > 0


def test_what_transformers_refuses_is_said() -> None:
    """A size that passes the run file and not transformers becomes one sentence with its reason."""
    config = family_config("deberta-v2", options={"conv_kernel_size": 3})
    config = config.model_copy(update={"model": config.model.model_copy(update={"hidden_size": 33})})
    with pytest.raises(ConfigError, match=r"cannot be built as a `deberta-v2`: .*33.*\.$"):
        built(config)
