"""`model:` and `objective:`: the fields of each family, its objectives, and Reformer's chunks and positions."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from auth.errors import ConfigError
from peer.config.architectures import ARCHITECTURES
from peer.config.model import Model, generator_of, reformer_settings
from peer.config.run import RunConfig
from tests.support.tiny_families import NAMES, family_config


def reformer(length: int = 64, positions: int = 64, **options: Any) -> RunConfig:
    """A small Reformer that trains at this length."""
    return RunConfig.from_mapping(
        {
            "model": {
                "architecture": "reformer",
                "hidden_size": 32,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "max_position_embeddings": positions,
                "options": options,
            },
            "objective": {"name": "mlm"},
            "data": {"sequence_length": length},
        }
    )


def test_what_the_run_file_leaves_open_follows_from_the_sizes() -> None:
    """Kinds of attention alternate, heads divide the width, and two short axes make up all positions."""
    settings = reformer_settings(
        reformer(length=96, positions=96, local_attn_chunk_length=32, lsh_attn_chunk_length=16).model
    )
    assert settings["attn_layers"] == ["local", "lsh", "local"]
    assert settings["attention_head_size"] == 8
    assert settings["axial_pos_shape"] == [8, 12]
    assert settings["axial_pos_embds_dim"] == [8, 24]
    assert settings["num_buckets"] == 8


def test_many_buckets_come_in_two_factors() -> None:
    """Hashing into many buckets at once would take too much memory."""
    settings = reformer_settings(Model(architecture="reformer", max_position_embeddings=65_536))
    assert settings["num_buckets"] == [32, 64]


def test_what_the_run_file_says_counts() -> None:
    """An option goes before what would follow from the sizes."""
    assert reformer_settings(reformer(axial_pos_shape=[2, 32]).model)["axial_pos_shape"] == [2, 32]


@pytest.mark.parametrize(
    ("length", "options", "parts"),
    [
        (32, {}, ["`data.sequence_length` (32)", "`model.max_position_embeddings` (64)", "`axial_pos_embds: false`"]),
        (48, {"axial_pos_embds": False, "lsh_attn_chunk_length": 32}, ["(48)", "multiple", "(64 tokens)"]),
        (64, {"axial_pos_shape": [4, 4]}, ["`model.options.axial_pos_shape` ([4, 4])", "(64)"]),
        (
            64,
            {"axial_pos_embds_dim": [4, 4]},
            ["`model.options.axial_pos_embds_dim` ([4, 4])", "`model.hidden_size` (32)"],
        ),
        (64, {"attn_layers": ["lsh"]}, ["names 1 layers", "`model.num_hidden_layers` says 3"]),
    ],
)
def test_what_does_not_fit_is_said(length: int, options: dict[str, Any], parts: list[str]) -> None:
    """The keys, their values and the remedy stand in one sentence."""
    with pytest.raises(ConfigError) as caught:
        reformer(length, **options)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("length", [16, 32, 64])
def test_plain_positions_allow_every_length_that_the_chunks_divide(length: int) -> None:
    """Without axes, shorter samples fit as well: whole chunks, or less than one."""
    config = reformer(length, axial_pos_embds=False, local_attn_chunk_length=16, lsh_attn_chunk_length=32)
    assert config.data.sequence_length == length


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


def test_the_generator_is_narrower_and_its_heads_as_wide() -> None:
    """As ELECTRA-small's: a quarter of the width and of the heads, all layers."""
    model = Model(
        architecture="electra", hidden_size=256, num_hidden_layers=12, num_attention_heads=4, intermediate_size=1024
    )
    generator = generator_of(model, 0.25)
    sizes = generator.hidden_size, generator.num_attention_heads, generator.intermediate_size
    assert sizes == (64, 1, 256)
    assert generator.num_hidden_layers == 12
    assert generator_of(model, 0.01).hidden_size == 64


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


FILL = {"name": "fill", "kind": "fill-mask", "test": "held-out.txt"}


@pytest.mark.parametrize(
    ("architecture", "objective", "more", "said"),
    [
        ("albert", "clm", {}, "`objective.name` (clm) is not for `albert`: set it to `mlm+sop` or `mlm`."),
        ("bert", "mlm+sop", {}, "`objective.name` (mlm+sop) is not for `bert`: set it to `mlm`."),
        ("bert", "rtd", {}, "`objective.name` (rtd) is not for `bert`: set it to `mlm`."),
        ("reformer", "clm", {}, "`objective.name` (clm) is not for `reformer`: set it to `mlm`."),
        ("gpt2", "mlm", {}, "`objective.name` (mlm) is not for `gpt2`: set it to `clm`."),
        (
            "gpt2",
            "clm",
            {"objective": {"name": "clm", "whole_words": True}},
            "`objective.whole_words` (true) is for masked language modelling",
        ),
        (
            "electra",
            "rtd",
            {"evaluation": {"tasks": [FILL]}},
            "the task `fill` of kind fill-mask asks a checkpoint to fill a mask",
        ),
        (
            "modernbert",
            "mlm",
            {"model": {"architecture": "modernbert", "hidden_size": 60, "num_attention_heads": 12}},
            "`hidden_size` (60) must be an even multiple of `num_attention_heads` (12)",
        ),
        (
            "bert",
            "mlm",
            {"model": {"architecture": "bert", "embedding_size": 64}},
            "`model.embedding_size` (64) is no size of `bert`: remove it.",
        ),
    ],
)
def test_what_does_not_suit_the_family_is_refused(
    architecture: str, objective: str, more: dict[str, Any], said: str
) -> None:
    """Before anything is trained, with the remedy; objectives, sizes, and what an evaluation asks for."""
    sections = {"model": {"architecture": architecture}, "objective": {"name": objective}}
    assert said in mistake(**sections | more)
