"""The names of an encoder's weights in transformers and the order of its layers, for JAX.

ALBERT, BERT and RoBERTa share one architecture (embeddings, layers that normalize after each
residual sum, and a head), but name its weights differently. JAX uses the names of each family, so
checkpoints need no conversion. This module is separate because machines without JAX import it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from auth.errors import ConfigError

POSITIONS_AFTER_PADDING = {"roberta"}  # families whose positions start after the padding token's id


@dataclass(frozen=True)
class LayerNames:
    """The names of one encoder layer's weights, without the suffixes `.weight` and `.bias`."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    inner: str
    output: str
    output_norm: str


@dataclass(frozen=True)
class EncoderLayout:
    """The names of an encoder's weights, and the constants of its configuration."""

    embeddings: str
    projection: str | None  # projects embeddings to the hidden size (ALBERT)
    layers: tuple[tuple[LayerNames, int], ...]  # layers in order, with their number of consecutive repeats
    head_dense: str
    head_norm: str
    head_bias: str
    pooler: str | None  # None without sentence-order prediction
    classifier: str | None
    heads: int
    norm_epsilon: float
    gelu_is_approximate: bool
    first_position: int
    hidden_dropout: float  # after the embeddings and after attention
    output_dropout: float  # after a layer's second product; 0 for ALBERT
    attention_dropout: float
    classifier_dropout: float


def layout_of(config: Any, *, sentence_order: bool) -> EncoderLayout:
    """Return the layout for a transformers configuration. Raises `ConfigError` for unsupported families."""
    family = config.model_type
    if family not in ("albert", "bert", "roberta"):
        raise ConfigError(f"JAX trains ALBERT, BERT and RoBERTa, not `{family}`: use `--device auto` for this run.")
    albert = family == "albert"
    masked_head = {"albert": "predictions", "bert": "cls.predictions", "roberta": "lm_head"}[family]
    dense = {"albert": "predictions.dense", "bert": "cls.predictions.transform.dense", "roberta": "lm_head.dense"}
    norm = {
        "albert": "predictions.LayerNorm",
        "bert": "cls.predictions.transform.LayerNorm",
        "roberta": "lm_head.layer_norm",
    }
    return EncoderLayout(
        embeddings=f"{family}.embeddings",
        projection="albert.encoder.embedding_hidden_mapping_in" if albert else None,
        layers=_albert_layers(config) if albert else _bert_layers(family, config.num_hidden_layers),
        head_dense=dense[family],
        head_norm=norm[family],
        head_bias=f"{masked_head}.bias",
        pooler="albert.pooler" if sentence_order else None,
        classifier="sop_classifier.classifier" if sentence_order else None,
        heads=config.num_attention_heads,
        norm_epsilon=config.layer_norm_eps,
        gelu_is_approximate=config.hidden_act == "gelu_new",
        first_position=config.pad_token_id + 1 if family in POSITIONS_AFTER_PADDING else 0,
        hidden_dropout=config.hidden_dropout_prob,
        output_dropout=0.0 if albert else config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        classifier_dropout=config.classifier_dropout_prob if albert else 0.0,
    )


def _albert_layers(config: Any) -> tuple[tuple[LayerNames, int], ...]:
    """Return ALBERT's layers in order, with consecutive repeats of a layer merged."""
    groups = [index * config.num_hidden_groups // config.num_hidden_layers for index in range(config.num_hidden_layers)]
    order = [(group, inner) for group in groups for inner in range(config.inner_group_num)]
    runs: list[tuple[LayerNames, int]] = []
    for group, inner in order:
        names = _albert_layer(f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}")
        repeats = runs.pop()[1] if runs and runs[-1][0] == names else 0
        runs.append((names, repeats + 1))
    return tuple(runs)


def _albert_layer(prefix: str) -> LayerNames:
    return LayerNames(
        query=f"{prefix}.attention.query",
        key=f"{prefix}.attention.key",
        value=f"{prefix}.attention.value",
        attention_output=f"{prefix}.attention.dense",
        attention_norm=f"{prefix}.attention.LayerNorm",
        inner=f"{prefix}.ffn",
        output=f"{prefix}.ffn_output",
        output_norm=f"{prefix}.full_layer_layer_norm",
    )


def _bert_layers(family: str, count: int) -> tuple[tuple[LayerNames, int], ...]:
    return tuple((_bert_layer(f"{family}.encoder.layer.{index}"), 1) for index in range(count))


def _bert_layer(prefix: str) -> LayerNames:
    return LayerNames(
        query=f"{prefix}.attention.self.query",
        key=f"{prefix}.attention.self.key",
        value=f"{prefix}.attention.self.value",
        attention_output=f"{prefix}.attention.output.dense",
        attention_norm=f"{prefix}.attention.output.LayerNorm",
        inner=f"{prefix}.intermediate.dense",
        output=f"{prefix}.output.dense",
        output_norm=f"{prefix}.output.LayerNorm",
    )
