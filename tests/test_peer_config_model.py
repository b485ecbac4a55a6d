"""`model:` and `objective:`: what each family may be told, and which objective suits it."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from auth.errors import ConfigError
from peer.config.architectures import ARCHITECTURES
from peer.config.model import Model
from peer.run_config import RunConfig
from tests.support.tiny_families import NAMES, family_config


def mistake(**sections: Any) -> str:
    """What the person reads who wrote these sections."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(sections)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_family_of_the_table_can_be_named() -> None:
    """The run file accepts exactly the families that the table describes."""
    assert set(get_args(Model.model_fields["architecture"].annotation)) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", NAMES)
def test_a_familys_configuration_survives_the_way_to_a_peer(name: str) -> None:
    """Sizes that a family lacks stay absent, and options keep their types."""
    config = family_config(name)
    assert RunConfig.from_json(config.to_json()) == config


def test_sizes_of_some_families_have_defaults_there_and_are_absent_elsewhere() -> None:
    """ALBERT and ELECTRA have narrow embeddings, only ALBERT groups of layers."""
    assert (Model().embedding_size, Model().num_hidden_groups) == (128, 1)
    assert (Model(architecture="electra").embedding_size, Model(architecture="electra").num_hidden_groups) == (
        128,
        None,
    )
    assert Model(architecture="bert").embedding_size is None
    message = mistake(model={"architecture": "bert", "embedding_size": 64}, objective={"name": "mlm"})
    assert "`model.embedding_size` (64) is no size of `bert`: remove it." in message


@pytest.mark.parametrize(
    "key",
    [
        "trust_remote_code",
        "auto_map",
        "_name_or_path",
        "torch_dtype",
        "dtype",
        "quantization_config",
        "id2label",
        "x" * 999,
    ],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_option_reaches_transformers_that_is_not_in_the_table(architecture: str, key: str) -> None:
    """What could name code, files or formats, or is just misspelt, is refused with the options that there are."""
    message = mistake(model={"architecture": architecture, "options": {key: True}})
    assert f"`model.options.{key:.60}` is no option of `{architecture}`: remove it; allowed are `" in message


@pytest.mark.parametrize(
    ("architecture", "key", "value", "said"),
    [
        ("bert", "hidden_act", "os.system", "input should be 'gelu'"),
        ("bert", "layer_norm_eps", float("nan"), "finite number"),
        ("bert", "layer_norm_eps", 0.0, "greater than 0"),
        ("bert", "layer_norm_eps", "1e-5", "valid number"),
        ("deberta", "relative_attention", 1, "valid boolean"),
        ("deberta-v2", "pos_att_type", ["p2p"], "input should be 'c2p'"),
        ("deberta-v2", "conv_kernel_size", 4, "input should be 0, 3, 5 or 7"),
        ("reformer", "num_hashes", 10**30, "less than or equal to 64"),
        ("reformer", "num_buckets", 7, "multiple of 2"),
        ("reformer", "attn_layers", ["lsh"] * 10_000, "at most 256 items"),
        ("reformer", "axial_pos_shape", {"a": 1}, "valid list"),
        ("gpt2", "scale_attn_weights", None, "valid boolean"),
    ],
)
def test_an_options_value_is_checked(architecture: str, key: str, value: Any, said: str) -> None:
    """A value of the wrong type or size is named, and what is allowed."""
    message = mistake(model={"architecture": architecture, "options": {key: value}})
    assert f"`model.options.{key}` (" in message
    assert said in message
    assert len(message) < 400


@pytest.mark.parametrize("options", [3, ["hidden_act"], "gelu", None])
def test_options_are_a_mapping(options: Any) -> None:
    """Anything else is refused by name."""
    assert "`model.options`" in mistake(model={"options": options})


@pytest.mark.parametrize("architecture", [3, None, ["albert"], "Albert", {"albert": 1}])
def test_an_unknown_family_is_named(architecture: Any) -> None:
    """The message lists the families that there are."""
    message = mistake(model={"architecture": architecture})
    assert "`model.architecture`" in message
    assert "'reformer'" in message


@pytest.mark.parametrize(
    ("architecture", "objective", "remedy"),
    [
        ("albert", "clm", "set it to `mlm+sop` or `mlm`"),
        ("bert", "mlm+sop", "set it to `mlm`"),
        ("reformer", "clm", "set it to `mlm`"),
        ("gpt2", "mlm", "set it to `clm`"),
    ],
)
def test_an_objective_that_does_not_suit_the_family_is_refused(architecture: str, objective: str, remedy: str) -> None:
    """Only ALBERT learns the order of sentences, and only GPT-2 the next token; the remedy is said."""
    message = mistake(model={"architecture": architecture}, objective={"name": objective})
    assert f"`objective.name` ({objective}) is not for `{architecture}`: {remedy}." in message


def test_whole_words_are_for_masking() -> None:
    """Where nothing is masked there are no words to keep together."""
    message = mistake(model={"architecture": "gpt2"}, objective={"name": "clm", "whole_words": True})
    assert "`objective.whole_words` (true) is for masked language modelling" in message
