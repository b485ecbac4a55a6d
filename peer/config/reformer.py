"""Reformer's settings: what the run file leaves open, and whether it all fits the samples' length.

Its attention works in chunks of a fixed length, and its axial positions (two short tables in place of one long one)
make up exactly one length (Kitaev et al. 2020, arXiv 2001.04451). transformers says so in the first training step only.
"""

from __future__ import annotations

import math
from itertools import cycle, islice
from typing import TYPE_CHECKING, cast

from peer.config.architectures import MAX_LAYERS, Option

if TYPE_CHECKING:
    from peer.config.model import Model

DEFAULT_CHUNK = 64


def reformer_settings(model: Model) -> dict[str, Option]:
    """The options of a Reformer, completed from its sizes as the paper and transformers recommend."""
    chunk = cast(int, model.options.get("lsh_attn_chunk_length", DEFAULT_CHUNK))
    positions = model.max_position_embeddings
    first = max(factor for factor in range(1, math.isqrt(positions) + 1) if positions % factor == 0)
    quarter = max(1, model.hidden_size // 4)
    defaults: dict[str, Option] = {
        "attn_layers": [*islice(cycle(("local", "lsh")), min(model.num_hidden_layers, MAX_LAYERS))],
        "attention_head_size": model.hidden_size // model.num_attention_heads,
        "axial_pos_embds": True,
        "axial_pos_shape": [first, positions // first],
        "axial_pos_embds_dim": [quarter, model.hidden_size - quarter],
        "local_attn_chunk_length": DEFAULT_CHUNK,
        "local_attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        "lsh_attn_chunk_length": DEFAULT_CHUNK,
        "lsh_attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        "num_buckets": _buckets(positions, chunk),
    }
    return defaults | model.options


def check_reformer(model: Model, sequence_length: int) -> None:
    """Raise `ValueError` with one sentence if the settings contradict each other or this length of the samples."""
    settings = reformer_settings(model)
    layers = cast(list[str], settings["attn_layers"])
    if len(layers) != model.num_hidden_layers:
        raise ValueError(
            f"`model.options.attn_layers` names {len(layers)} layers, `model.num_hidden_layers` says "
            f"{model.num_hidden_layers}: make them agree"
        )
    chunks = [cast(int, settings[f"{kind}_attn_chunk_length"]) for kind in sorted(set(layers))]
    if sequence_length > min(chunks) and sequence_length % math.lcm(*chunks):
        raise ValueError(
            f"`data.sequence_length` ({sequence_length}) must be a multiple of Reformer's attention chunks "
            f"({math.lcm(*chunks)} tokens), or set `local_attn_chunk_length` and `lsh_attn_chunk_length` "
            "in `model.options`"
        )
    if settings["axial_pos_embds"]:
        _check_axes(model, settings, sequence_length)


def _check_axes(model: Model, settings: dict[str, Option], sequence_length: int) -> None:
    if sequence_length != model.max_position_embeddings:
        raise ValueError(
            f"`data.sequence_length` ({sequence_length}) must equal `model.max_position_embeddings` "
            f"({model.max_position_embeddings}) for Reformer's axial positions, "
            "or set `axial_pos_embds: false` in `model.options`"
        )
    shape, widths = cast(list[int], settings["axial_pos_shape"]), cast(list[int], settings["axial_pos_embds_dim"])
    if math.prod(shape) != sequence_length:
        raise ValueError(
            f"`model.options.axial_pos_shape` ({shape}) must multiply to `data.sequence_length` ({sequence_length})"
        )
    if sum(widths) != model.hidden_size:
        raise ValueError(
            f"`model.options.axial_pos_embds_dim` ({widths}) must add up to `model.hidden_size` ({model.hidden_size})"
        )


def _buckets(length: int, chunk: int) -> Option:
    """About two buckets for each chunk of a sample, a power of two; in two factors where they are many."""
    power = max(1, (2 * length // chunk).bit_length() - 1)
    return 2**power if 2**power <= 2 * chunk else [2 ** (power // 2), 2 ** (power - power // 2)]
