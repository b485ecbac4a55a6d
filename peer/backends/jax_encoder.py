"""The forward pass and the losses of an encoder in JAX, equal to what transformers computes in PyTorch.

Pure functions over a dictionary of weights, named as `peer.backends.jax_layout` says. Products are computed in
`precision` (bfloat16 on TPUs) and summed in float32; normalization, softmax and losses are float32 throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from peer.backends.jax_layout import EncoderLayout, LayerNames

Weights = Mapping[str, Array]
FARTHEST = -3.0e38  # the score of a place that only pads


@dataclass(frozen=True)
class Shard:
    """The part of a microbatch that one device computes: b samples of length l, p places to guess in each."""

    input_ids: Array  # (b, l) int32
    token_type_ids: Array  # (b, l) int32
    attention_mask: Array  # (b, l) bool
    positions: Array  # (b, p) int32, within the sample
    labels: Array  # (b, p) int32
    counted: Array  # (b, p) float32; 0 where a place only fills the shape
    sop_labels: Array  # (b,) int32; zeros without sentence order
    real: Array  # (b,) float32; 0 where a sample only fills the shape


jax.tree_util.register_dataclass(
    Shard,
    data_fields=[
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "positions",
        "labels",
        "counted",
        "sop_labels",
        "real",
    ],
    meta_fields=[],
)


def loss_sums(weights: Weights, shard: Shard, layout: EncoderLayout, precision: Any, key: Array) -> tuple[Array, Array]:
    """The sums of the masked-LM cross entropy over the counted places and of the order's over the samples; float32."""
    hidden = _encode(weights, shard, layout, precision, key)  # (b, l, hidden)
    masked = jnp.take_along_axis(hidden, shard.positions[..., None], axis=1)  # (b, p, hidden)
    entropies = _cross_entropy(_masked_logits(weights, masked, layout, precision), shard.labels)  # (b, p)
    order = jnp.zeros((), jnp.float32)
    if layout.pooler is not None and layout.classifier is not None:
        pooled = jnp.tanh(_linear(weights, layout.pooler, hidden[:, 0], precision))
        pooled = _dropout(pooled, layout.classifier_dropout, jax.random.fold_in(key, 1))
        entropies_of_order = _cross_entropy(_linear(weights, layout.classifier, pooled, precision), shard.sop_labels)
        order = (entropies_of_order * shard.real).sum()
    return (entropies * shard.counted).sum(), order


def _encode(weights: Weights, shard: Shard, layout: EncoderLayout, precision: Any, key: Array) -> Array:
    length = shard.input_ids.shape[1]
    names = layout.embeddings
    hidden = weights[f"{names}.word_embeddings.weight"][shard.input_ids]
    hidden += weights[f"{names}.token_type_embeddings.weight"][shard.token_type_ids]
    positions = weights[f"{names}.position_embeddings.weight"]
    hidden += positions[layout.first_position : layout.first_position + length]
    hidden = _dropout(_norm(weights, f"{names}.LayerNorm", hidden, layout), layout.hidden_dropout, key)
    if layout.projection is not None:
        hidden = _linear(weights, layout.projection, hidden, precision)
    depth = 0
    for layer, repeats in layout.layers:
        keys = jax.random.split(jax.random.fold_in(key, 2 + depth), repeats)

        def apply(state: Array, layer_key: Array, layer: LayerNames = layer) -> tuple[Array, None]:
            return _layer(weights, layer, state, shard.attention_mask, layout, precision, layer_key), None

        hidden, _ = jax.lax.scan(apply, hidden, keys)  # compiled once, however often it is applied
        depth += repeats
    return hidden


def _layer(
    weights: Weights, names: LayerNames, hidden: Array, mask: Array, layout: EncoderLayout, precision: Any, key: Array
) -> Array:
    """hidden (b, l, hidden) -> the same."""
    attention_key, output_key, inner_key = jax.random.split(key, 3)
    context = _attend(weights, names, hidden, mask, layout, precision, attention_key)
    attended = _linear(weights, names.attention_output, context, precision)
    attended = _dropout(attended, layout.hidden_dropout, output_key)
    hidden = _norm(weights, names.attention_norm, hidden + attended, layout)
    inner = jax.nn.gelu(_linear(weights, names.inner, hidden, precision), approximate=layout.gelu_is_approximate)
    output = _dropout(_linear(weights, names.output, inner, precision), layout.output_dropout, inner_key)
    return _norm(weights, names.output_norm, hidden + output, layout)


def _attend(
    weights: Weights, names: LayerNames, hidden: Array, mask: Array, layout: EncoderLayout, precision: Any, key: Array
) -> Array:
    """Gather for each place from its sample, (b, l, hidden); the key bias has no gradient (`peer.models.albert`)."""
    batch, length, width = hidden.shape
    shape = (batch, length, layout.heads, width // layout.heads)
    query = _linear(weights, names.query, hidden, precision).reshape(shape)
    value = _linear(weights, names.value, hidden, precision).reshape(shape)
    keys = _product(hidden, weights[f"{names.key}.weight"], precision)
    keys = (keys + jax.lax.stop_gradient(weights[f"{names.key}.bias"])).reshape(shape)
    scores = _einsum("bqhd,bkhd->bhqk", query, keys, precision)
    scores = jnp.where(mask[:, None, None, :], scores / jnp.sqrt(shape[-1]), FARTHEST)
    chances = _dropout(jax.nn.softmax(scores), layout.attention_dropout, key)
    context = _einsum("bhqk,bkhd->bqhd", chances, value, precision)
    return context.reshape(batch, length, width)


def _masked_logits(weights: Weights, hidden: Array, layout: EncoderLayout, precision: Any) -> Array:
    """(b, p, hidden) -> (b, p, vocabulary); the head's matrix is the word embeddings'."""
    hidden = jax.nn.gelu(_linear(weights, layout.head_dense, hidden, precision), approximate=layout.gelu_is_approximate)
    hidden = _norm(weights, layout.head_norm, hidden, layout)
    words = weights[f"{layout.embeddings}.word_embeddings.weight"]
    return _product(hidden, words, precision) + weights[layout.head_bias]


def _cross_entropy(logits: Array, labels: Array) -> Array:
    """Without the last axis."""
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _linear(weights: Weights, name: str, inputs: Array, precision: Any) -> Array:
    return _product(inputs, weights[f"{name}.weight"], precision) + weights[f"{name}.bias"]


def _product(inputs: Array, matrix: Array, precision: Any) -> Array:
    """inputs (..., k), matrix (m, k) as PyTorch stores it -> (..., m) float32"""
    return _einsum("...k,mk->...m", inputs, matrix, precision)


def _einsum(subscripts: str, left: Array, right: Array, precision: Any) -> Array:
    """Factors in `precision`, sums in float32; float32 factors are not cut to bfloat16, as TPUs do by default."""
    exact = jax.lax.Precision.HIGHEST if precision == jnp.float32 else jax.lax.Precision.DEFAULT
    return jnp.einsum(
        subscripts,
        left.astype(precision),
        right.astype(precision),
        precision=exact,
        preferred_element_type=jnp.float32,
    )


def _norm(weights: Weights, name: str, hidden: Array, layout: EncoderLayout) -> Array:
    centred = hidden - hidden.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + layout.norm_epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _dropout(values: Array, rate: float, key: Array) -> Array:
    if rate == 0.0:
        return values
    return jnp.where(jax.random.bernoulli(key, 1 - rate, values.shape), values / (1 - rate), 0.0)
