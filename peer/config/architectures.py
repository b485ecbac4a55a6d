"""Properties of each model family: options allowed in a run file, and facts for the data pipeline.

Commands and agents use these properties too, without importing transformers. `peer.models.build`
builds and runs the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from peer.config.base import Fraction

Scalar = bool | int | float | str
Option = Scalar | list[Scalar]

MOST = 1_000_000
MAX_LAYERS = 256
Count = Annotated[int, Field(gt=0, le=MOST)]
NeighbourChunks = Annotated[int, Field(ge=0, le=64)]
EvenCount = Annotated[int, Field(ge=2, le=MOST, multiple_of=2)]
Two = Field(min_length=2, max_length=2)
Small = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Theta = Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh"]


@dataclass(frozen=True)
class Architecture:
    """A family of models, identified by its name in transformers."""

    objectives: tuple[str, ...]
    options: Mapping[str, Any]  # transformers configuration key -> pydantic type of its value
    own_sizes: Mapping[str, int] = field(default_factory=dict)  # key of a size that only some families have -> default
    token_types: int = 1  # number of segment types that the model distinguishes
    framed: bool = True  # whether a sample is enclosed in [CLS] and [SEP]
    separable: bool = False  # whether attention can be restricted to each document of a sample


_COMMON = {"initializer_range": Small, "layer_norm_eps": Small}
_ENCODER = {**_COMMON, "hidden_act": Activation}
_RELATIVE = {
    **_ENCODER,
    "relative_attention": bool,
    "position_biased_input": bool,
    "max_relative_positions": Count,
    "pos_att_type": Annotated[list[Literal["c2p", "p2c"]], Field(min_length=1, max_length=2)],
}
ARCHITECTURES: Mapping[str, Architecture] = {
    "albert": Architecture(
        objectives=("mlm+sop", "mlm"),
        options={**_COMMON, "inner_group_num": Count},
        own_sizes={"embedding_size": 128, "num_hidden_groups": 1},
        token_types=2,
    ),
    "bert": Architecture(("mlm",), _ENCODER, token_types=2),
    "roberta": Architecture(("mlm",), _ENCODER),
    "electra": Architecture(("mlm", "rtd"), _ENCODER, own_sizes={"embedding_size": 128}, token_types=2),
    "deberta": Architecture(("mlm",), _RELATIVE),
    "deberta-v2": Architecture(
        objectives=("mlm",),
        options={
            **_RELATIVE,
            "position_buckets": Annotated[int, Field(ge=4, le=MOST)],
            "share_att_key": bool,
            "norm_rel_ebd": Literal["none", "layer_norm"],
            "conv_kernel_size": Literal[0, 3, 5, 7],  # an even kernel size would shorten the sequence
            "conv_act": Activation,
        },
    ),
    "modernbert": Architecture(
        objectives=("mlm",),
        options={
            "initializer_range": Small,
            "norm_eps": Small,
            "hidden_activation": Activation,
            "local_attention": EvenCount,
            "global_attn_every_n_layers": Count,
            "global_rope_theta": Theta,
            "local_rope_theta": Theta,
        },
        separable=True,
    ),
    "reformer": Architecture(
        objectives=("mlm",),
        options={
            **_ENCODER,
            "attn_layers": Annotated[list[Literal["local", "lsh"]], Field(min_length=1, max_length=MAX_LAYERS)],
            "attention_head_size": Count,
            "axial_pos_embds": bool,
            "axial_pos_shape": Annotated[list[Count], Two],
            "axial_pos_embds_dim": Annotated[list[Count], Two],
            "axial_norm_std": Small,
            "local_attn_chunk_length": Count,
            "local_num_chunks_before": NeighbourChunks,
            "local_num_chunks_after": NeighbourChunks,
            "local_attention_probs_dropout_prob": Fraction,
            "lsh_attn_chunk_length": Count,
            "lsh_num_chunks_before": NeighbourChunks,
            "lsh_num_chunks_after": NeighbourChunks,
            "lsh_attention_probs_dropout_prob": Fraction,
            "num_buckets": EvenCount | Annotated[list[EvenCount], Two],
            "num_hashes": Annotated[int, Field(ge=1, le=64)],
        },
    ),
    "gpt2": Architecture(
        objectives=("clm",),
        options={
            "activation_function": Activation,
            "initializer_range": Small,
            "layer_norm_epsilon": Small,
            "scale_attn_weights": bool,
            "scale_attn_by_inverse_layer_idx": bool,
        },
        framed=False,
    ),
}


def read_options(architecture: str, options: Mapping[str, object]) -> dict[str, Option]:
    """Return the options, validated by type. Raises `ValueError` that describes the first error.

    Only the family's `options` are allowed, so no code, files or formats from the network reach
    transformers.
    """
    types = ARCHITECTURES[architecture].options
    read: dict[str, Option] = {}
    for key, value in options.items():
        if key not in types:
            known = ", ".join(f"`{name}`" for name in sorted(types))
            raise ValueError(
                f"`model.options.{key!s:.60}` is no option of `{architecture}`: remove it; allowed are {known}"
            )
        try:
            read[key] = TypeAdapter[Option](types[key], config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ValueError(f"`model.options.{key}` ({value!r:.80}): {message[0].lower()}{message[1:]}") from error
    return read
