"""Reformer's chunks and axial positions fit the samples' length, or one sentence says why not."""

from __future__ import annotations

from typing import Any

import pytest

from auth.errors import ConfigError
from peer.config.model import Model
from peer.config.reformer import reformer_settings
from peer.run_config import RunConfig


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
