"""Gradients with JAX: on all cores of a TPU host, and with the same code on CPUs and GPUs.

A microbatch is divided among the devices, each of which accumulates its own gradients. Gradients
are summed and copied to the host once per averaging round (`collect`), and new parameters
are copied to the devices once per global step (`synchronize`). The master copy of the parameters is
in the PyTorch module, so the swarm, checkpoints and state downloads do not depend on JAX.

The forward pass and the losses of an encoder match those of transformers in PyTorch. They are pure
functions of a dictionary of weights, named as in `peer.backends.jax_layout`. Matrix products use
`precision` (bfloat16 on TPUs); accumulation, normalization, softmax and losses use float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from peer.backends import MicrobatchResult
from peer.backends.jax_layout import EncoderLayout, LayerNames, layout_of
from peer.config.run import RunConfig

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

PLACES = 16  # label counts are padded to a multiple of this, to limit the number of compiled shapes
AXIS = "data"
EVERYWHERE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]
Gradients = dict[str, Array]
Weights = Mapping[str, Array]
FARTHEST = -3.0e38  # attention score of padding


@dataclass(frozen=True)
class DeviceBatch:
    """One device's part of a microbatch: b samples of length l, with p labelled positions each."""

    input_ids: Array  # (b, l) int32
    token_type_ids: Array  # (b, l) int32
    attention_mask: Array  # (b, l) bool
    positions: Array  # (b, p) int32, index in the sample
    labels: Array  # (b, p) int32
    counted: Array  # (b, p) float32; 0 for padding
    sop_labels: Array  # (b,) int32; negative if unlabelled, all 0 without sentence-order prediction
    real: Array  # (b,) float32; 0 for padding


jax.tree_util.register_dataclass(
    DeviceBatch,
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


def loss_sums(
    weights: Weights, shard: DeviceBatch, layout: EncoderLayout, precision: Any, key: Array
) -> tuple[Array, Array]:
    """Return the sums of the masked-LM and sentence-order cross entropies, in float32."""
    hidden = _encode(weights, shard, layout, precision, key)  # (b, l, hidden)
    masked = jnp.take_along_axis(hidden, shard.positions[..., None], axis=1)  # (b, p, hidden)
    entropies = _cross_entropy(_masked_logits(weights, masked, layout, precision), shard.labels)  # (b, p)
    order = jnp.zeros((), jnp.float32)
    if layout.pooler is not None and layout.classifier is not None:
        pooled = jnp.tanh(_linear(weights, layout.pooler, hidden[:, 0], precision))
        pooled = _dropout(pooled, layout.classifier_dropout, jax.random.fold_in(key, 1))
        labels = shard.sop_labels
        entropies_of_order = _cross_entropy(_linear(weights, layout.classifier, pooled, precision), labels.clip(0))
        order = (entropies_of_order * shard.real * (labels >= 0)).sum()
    return (entropies * shard.counted).sum(), order


def _encode(weights: Weights, shard: DeviceBatch, layout: EncoderLayout, precision: Any, key: Array) -> Array:
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

        hidden, _ = jax.lax.scan(apply, hidden, keys)  # `scan` compiles the layer once for all repeats
        depth += repeats
    return hidden


def _layer(
    weights: Weights, names: LayerNames, hidden: Array, mask: Array, layout: EncoderLayout, precision: Any, key: Array
) -> Array:
    """Apply a layer: hidden (b, l, hidden) -> (b, l, hidden)."""
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
    """Apply self-attention, (b, l, hidden); key biases get no gradient (`peer.models.albert`)."""
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
    """Return token logits, (b, p, hidden) -> (b, p, vocabulary), using the word embeddings."""
    hidden = jax.nn.gelu(_linear(weights, layout.head_dense, hidden, precision), approximate=layout.gelu_is_approximate)
    hidden = _norm(weights, layout.head_norm, hidden, layout)
    words = weights[f"{layout.embeddings}.word_embeddings.weight"]
    return _product(hidden, words, precision) + weights[layout.head_bias]


def _cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the cross entropy over the last axis: logits (..., n), labels (...) -> (...)."""
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _linear(weights: Weights, name: str, inputs: Array, precision: Any) -> Array:
    return _product(inputs, weights[f"{name}.weight"], precision) + weights[f"{name}.bias"]


def _product(inputs: Array, matrix: Array, precision: Any) -> Array:
    """Multiply inputs (..., k) by the transpose of a PyTorch weight (m, k) -> (..., m) float32."""
    return _einsum("...k,mk->...m", inputs, matrix, precision)


def _einsum(subscripts: str, left: Array, right: Array, precision: Any) -> Array:
    """Multiply in `precision`, accumulate in float32; TPUs would otherwise truncate to bfloat16."""
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


class JaxBackend:
    """A backend for forward and backward passes on all of this machine's JAX devices."""

    def __init__(
        self,
        config: RunConfig,
        model: torch.nn.Module,
        devices: list[Any] | None = None,
        precision: Any | None = None,
    ) -> None:
        self._devices = devices or jax.local_devices()
        if precision is None:
            precision = jnp.float32 if self._devices[0].platform == "cpu" else jnp.bfloat16
        self._precision = precision
        self._sentence_order = config.objective.name == "mlm+sop"
        self._parameters = dict(model.named_parameters())
        self._mesh = Mesh(np.array(self._devices), (AXIS,))
        layout = layout_of(model.config, sentence_order=self._sentence_order)
        self._accumulate = _compile(self._mesh, layout, precision)
        self._sum = jax.jit(lambda sums: {name: value.sum(0) for name, value in sums.items()})
        self._key = jax.random.key(config.run.seed)
        self._microbatches = 0  # number of microbatches so far, for dropout seeds
        self._sums: Gradients
        self._holds_sums = False
        self.synchronize()

    @property
    def description(self) -> str:
        """The kind and the number of devices, such as `TPU v4 × 8 (JAX, bfloat16)`."""
        return f"{self._devices[0].device_kind} × {self.replicas} (JAX, {jnp.dtype(self._precision).name})"

    @property
    def replicas(self) -> int:
        """The number of devices among which a microbatch is divided."""
        return len(self._devices)

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return `usual` samples per device, at most `limit`; other sizes require recompilation."""
        del make_batch
        return max(1, min(limit, usual * self.replicas))

    def stage(self, batch: Batch) -> Batch:
        """Return the batch unchanged; `accumulate` divides it and copies it in one transfer."""
        return batch

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of the loss, summed over samples, if loss and gradient are finite."""
        masked = max(1, len(batch.labels))
        shard = jax.device_put(divide(batch, self.replicas), NamedSharding(self._mesh, DIVIDED))
        self._microbatches += 1
        self._holds_sums = True
        key = jax.random.fold_in(self._key, self._microbatches)
        scale = jnp.float32(batch.samples / masked)
        self._sums, losses, finite = self._accumulate(self._trained, self._frozen, self._sums, shard, scale, key)
        mlm_sum, order_sum = np.asarray(losses).tolist()  # waits for the devices
        mlm_loss, sop_loss = mlm_sum / masked, order_sum / batch.samples
        return MicrobatchResult(
            samples=batch.samples,
            loss=mlm_loss + sop_loss,
            mlm_loss=mlm_loss,
            sop_loss=sop_loss if self._sentence_order else None,
            finite=bool(finite) and math.isfinite(mlm_loss + sop_loss),
        )

    def collect(self) -> None:
        """Add the accumulated gradients to the parameters' `.grad` in place, and clear them."""
        if not self._holds_sums:
            return
        for name, total in jax.device_get(self._sum(self._sums)).items():
            gradient = torch.from_numpy(np.array(total))
            parameter = self._parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(gradient)
        self._clear()

    def synchronize(self) -> None:
        """Copy the new parameters to the devices and clear the accumulated gradients."""
        everywhere = NamedSharding(self._mesh, EVERYWHERE)
        hosts = {name: parameter.detach().cpu().numpy() for name, parameter in self._parameters.items()}
        trained = {name: host for name, host in hosts.items() if self._parameters[name].requires_grad}
        frozen = {name: host for name, host in hosts.items() if name not in trained}
        self._trained: Weights = jax.device_put(trained, everywhere)
        self._frozen: Weights = jax.device_put(frozen, everywhere)
        self._clear()

    def _clear(self) -> None:
        self._holds_sums = False
        zeros = partial(jnp.zeros, dtype=jnp.float32, device=NamedSharding(self._mesh, DIVIDED))
        self._sums = {name: zeros((self.replicas, *weight.shape)) for name, weight in self._trained.items()}


def divide(batch: Batch, replicas: int) -> DeviceBatch:
    """Pad a batch to a number of samples divisible by `replicas`; group its labels by sample."""
    samples, length = batch.input_ids.shape
    rows = math.ceil(samples / replicas) * replicas
    positions = batch.label_positions.numpy()
    owners, places = positions // length, positions % length
    counts = np.bincount(owners, minlength=samples)
    width = math.ceil(max(1, int(counts.max(initial=0))) / PLACES) * PLACES
    columns = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)

    def scatter(values: Any, dtype: Any) -> Any:
        table = np.zeros((rows, width), dtype)
        table[owners, columns] = values
        return table

    def fill(values: torch.Tensor | None, dtype: Any, default: int = 0) -> Any:
        shape = (rows,) if values is not None and values.ndim == 1 else (rows, length)
        table = np.full(shape, default, dtype)
        table[:samples] = default if values is None else values.numpy()
        return table

    return DeviceBatch(  # NumPy arrays, copied to the devices in one transfer
        input_ids=fill(batch.input_ids, np.int32),
        token_type_ids=fill(batch.token_type_ids, np.int32),
        attention_mask=fill(batch.attention_mask, np.bool_, default=1),
        positions=scatter(places, np.int32),
        labels=scatter(batch.labels.numpy(), np.int32),
        counted=scatter(1.0, np.float32),
        sop_labels=fill(batch.sop_labels if batch.sop_labels is not None else torch.zeros(samples), np.int32),
        real=fill(torch.ones(samples), np.float32),
    )


def _compile(mesh: Mesh, layout: EncoderLayout, precision: Any) -> Any:
    """Compile the step: (trained, frozen, sums, shard, scale, key) -> (sums, [MLM sum, order sum], finite)."""

    def step(
        trained: Weights, frozen: Weights, sums: Gradients, shard: DeviceBatch, scale: Array, key: Array
    ) -> tuple[Gradients, Array, Array]:
        key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))

        def objective(weights: Weights) -> tuple[Array, Array]:
            masked, order = loss_sums({**weights, **frozen}, shard, layout, precision, key)
            return masked * scale + order, jnp.stack([masked, order])

        gradients, losses = jax.grad(objective, has_aux=True)(trained)
        losses = jax.lax.psum(losses, AXIS)  # type: ignore[no-untyped-call]
        sizes = jnp.stack([jnp.square(gradient).sum() for gradient in gradients.values()])
        size = jax.lax.psum(sizes.sum(), AXIS)  # type: ignore[no-untyped-call]
        finite = jnp.isfinite(size + losses.sum())
        sums = {name: jnp.where(finite, total + gradients[name], total) for name, total in sums.items()}
        return sums, losses, finite

    divided = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(EVERYWHERE, EVERYWHERE, DIVIDED, DIVIDED, EVERYWHERE, EVERYWHERE),
        out_specs=(DIVIDED, EVERYWHERE, EVERYWHERE),
        check_vma=False,  # gradients differ per device until `collect`
    )
    return jax.jit(divided, donate_argnums=2)
