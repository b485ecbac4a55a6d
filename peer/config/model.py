"""`model:` and `objective:` in a run file: the architecture with its sizes, and the training objective.

Reformer's settings are completed and checked here. Reformer attends within chunks of fixed length,
and its axial positions (two short tables instead of a long one) fit exactly one length (Kitaev et
al. 2020, arXiv 2001.04451). transformers would report a mismatch only in the first training step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle, islice
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from peer.config.architectures import ARCHITECTURES, MAX_LAYERS, Count, Option, read_options
from peer.config.base import Fraction, Section

DEFAULT_CHUNK = 64
OWN_SIZES = ("embedding_size", "num_hidden_groups")


class Model(Section):
    """The model to train; keys have their transformers names, or ALBERT's names if families differ.

    The default is ALBERT-large (Lan et al. 2020, arXiv 1909.11942).
    """

    architecture: Literal[
        "albert", "bert", "roberta", "electra", "deberta", "deberta-v2", "modernbert", "reformer", "gpt2"
    ] = "albert"
    """Family of models, named as in transformers."""
    embedding_size: Count | None = None
    """Width of the token embeddings; only for `albert` and `electra`, by default 128."""
    hidden_size: Count = 1024
    """Width of the layers; a multiple of `num_attention_heads`."""
    num_hidden_layers: Count = 24
    """Number of layers."""
    num_hidden_groups: Count | None = None
    """Number of groups of layers that share weights; only for `albert`, by default 1."""
    num_attention_heads: Count = 16
    """Number of attention heads."""
    intermediate_size: Count = 4096
    """Width of the feed-forward network in a layer."""
    max_position_embeddings: Count = 512
    """Maximum sequence length of the model, in tokens."""
    hidden_dropout_prob: Fraction = 0.0
    """Dropout rate after layers."""
    attention_probs_dropout_prob: Fraction = 0.0
    """Dropout rate of attention."""
    options: dict[str, Option] = Field({}, strict=False)
    """Further keys of the family's transformers configuration."""

    @model_validator(mode="before")
    @classmethod
    def _read_by_architecture(cls, content: Any) -> Any:
        """Fill in the sizes that only this family has, and validate its options."""
        if not isinstance(content, Mapping):
            return content
        architecture, options = content.get("architecture", "albert"), content.get("options", {})
        if architecture not in tuple(ARCHITECTURES) or not isinstance(options, Mapping):
            return content
        sizes = {name: _own_size(architecture, name, content.get(name)) for name in OWN_SIZES}
        return {**content, **sizes, "options": read_options(architecture, options)}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Model:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of "
                f"`num_attention_heads` ({self.num_attention_heads})"
            )
        if self.architecture == "modernbert" and self.hidden_size // self.num_attention_heads % 2:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be an even multiple of `num_attention_heads` "
                f"({self.num_attention_heads}) for the rotary positions of `modernbert`"
            )
        return self

    def check_length(self, sequence_length: int) -> None:
        """Raise `ValueError` if samples of this length do not fit the model."""
        if sequence_length > self.max_position_embeddings:
            raise ValueError(
                f"`data.sequence_length` ({sequence_length}) must not exceed "
                f"`model.max_position_embeddings` ({self.max_position_embeddings})"
            )
        if self.architecture == "reformer":
            check_reformer(self, sequence_length)


def _own_size(architecture: str, name: str, value: object) -> object:
    """Return the given size or the family's default, or None if the family has no such size."""
    default = ARCHITECTURES[architecture].own_sizes.get(name)
    if default is None and value is not None:
        raise ValueError(f"`model.{name}` ({value!r:.80}) is no size of `{architecture}`: remove it")
    return default if value is None else value


class Objective(Section):
    """The objective: masked language modelling, replaced token detection, or causal language modelling."""

    name: Literal["mlm+sop", "mlm", "rtd", "clm"] = "mlm+sop"
    """Masked language modelling with (`mlm+sop`, for `albert`) or without (`mlm`) sentence order prediction,
    replaced token detection (`rtd`, for `electra`), or causal language modelling (`clm`, for `gpt2`)."""
    mask_probability: float = Field(0.15, gt=0, lt=1)
    """Share of the tokens to predict."""
    whole_words: bool = False
    """Mask either all tokens of a word or none of them."""
    generator_size: float = Field(0.25, gt=0, le=1)
    """For `rtd`: width of the generator's layers relative to the discriminator's. Both have equally many layers."""
    discriminator_weight: float = Field(50.0, gt=0, le=50)
    """For `rtd`: weight of the discriminator's loss, relative to the generator's."""

    @property
    def masks(self) -> bool:
        """Return whether the run masks tokens, which requires a mask token and a template for each text."""
        return self.name != "clm"

    @property
    def auto_class(self) -> str:
        """Return the transformers class that loads a checkpoint with the trained head."""
        if self.name == "rtd":
            return "AutoModelForPreTraining"
        return "AutoModelForMaskedLM" if self.masks else "AutoModelForCausalLM"

    def check_architecture(self, architecture: str) -> None:
        """Raise `ValueError` if the objective does not suit this model family."""
        fitting = ARCHITECTURES[architecture].objectives
        if self.name not in fitting:
            raise ValueError(
                f"`objective.name` ({self.name}) is not for `{architecture}`: "
                f"set it to {' or '.join(f'`{name}`' for name in fitting)}"
            )
        if self.whole_words and not self.masks:
            raise ValueError("`objective.whole_words` (true) is for masked language modelling: remove it")


def generator_of(model: Model, size: float) -> Model:
    """Return the generator for a discriminator: equal depth, fewer heads of equal width."""
    heads = max(1, round(size * model.num_attention_heads))
    sizes = {
        "num_attention_heads": heads,
        "hidden_size": heads * (model.hidden_size // model.num_attention_heads),
        "intermediate_size": max(1, round(size * model.intermediate_size)),
    }
    return model.model_copy(update=sizes)


def reformer_settings(model: Model) -> dict[str, Option]:
    """Return a Reformer's options, with the defaults of the paper and of transformers."""
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
    """Raise `ValueError` if the settings contradict each other or the sample length."""
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
    """Return the LSH buckets, about two per chunk: a power of two, or its two factors if large."""
    power = max(1, (2 * length // chunk).bit_length() - 1)
    return 2**power if 2**power <= 2 * chunk else [2 ** (power // 2), 2 ** (power - power // 2)]
