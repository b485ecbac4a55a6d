"""A faster forward pass for transformers' `AlbertForPreTraining`, and linear layers with oneDNN.

The module and its checkpoints are transformers'. The forward pass computes the same function for a
training batch. One matrix product gives query, key and value, GELU is fused, and attention has a
mask only if there is padding. After the last layer's attention, only the positions needed for a
loss (labels and [CLS]) are computed. `peer.models.build` lists ALBERT among the families.

PyTorch multiplies float32 matrices with MKL, which does not use AMD processors' AVX-512 units. On
these processors oneDNN, also part of PyTorch, is about twice as fast at the same precision. oneDNN
is called through an operator of PyTorch's compiler; accelerators, and builds without the operator,
use the ordinary `linear`. Other families' linear layers can use oneDNN too (`use_onednn`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AlbertForPreTraining
from transformers.models.albert.modeling_albert import AlbertAttention, AlbertLayer
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch


def encode(model: AlbertForPreTraining, batch: Batch, wanted: Tensor) -> Tensor:
    """Return the last layer's output (n, hidden) at the flat token positions `wanted` (n,)."""
    albert = model.albert
    config = albert.config
    embeddings = albert.embeddings
    _, length = batch.input_ids.shape
    hidden = functional.embedding(batch.input_ids, embeddings.word_embeddings.weight, config.pad_token_id)
    assert batch.token_type_ids is not None  # ALBERT has two segment types
    hidden = hidden + embeddings.token_type_embeddings(batch.token_type_ids)
    hidden = hidden + embeddings.position_embeddings.weight[:length]
    hidden = embeddings.dropout(embeddings.LayerNorm(hidden)).flatten(0, 1)  # (b * l, embedding)
    hidden = _apply(albert.encoder.embedding_hidden_mapping_in, hidden)  # (b * l, hidden)

    groups = [
        [_SharedLayer.of(cast(AlbertLayer, layer)) for layer in group.albert_layers]  # type: ignore[union-attr]
        for group in albert.encoder.albert_layer_groups
    ]
    order = [
        layer
        for index in range(config.num_hidden_layers)
        for layer in groups[index * config.num_hidden_groups // config.num_hidden_layers]
    ]
    mask = None if batch.attention_mask is None else batch.attention_mask.bool()[:, None, None, :]  # (b, 1, 1, l)
    saving_memory = getattr(albert.encoder, "gradient_checkpointing", False)
    forward = getattr(albert.encoder, "compiled_forward", None) or _SharedLayer.forward
    for layer in order[:-1]:
        if saving_memory and model.training:
            hidden = checkpoint(forward, layer, hidden, length, mask, use_reentrant=False)
        else:
            hidden = forward(layer, hidden, length, mask)
    return forward(order[-1], hidden, length, mask, wanted)


def compile_layers(model: AlbertForPreTraining, compiler: str | None) -> None:
    """Compile `encode`'s layers with a torch.compile backend; with None, undo the compilation."""
    compiled = None if compiler is None else torch.compile(_SharedLayer.forward, backend=compiler)
    model.albert.encoder.compiled_forward = compiled  # type: ignore[assignment]


@dataclass(frozen=True)
class _SharedLayer:
    """A shared layer with concatenated query, key and value weights, built once per batch.

    The key's bias is detached: it adds the same value to all scores of a row, which softmax
    ignores. Its computed gradient would be rounding noise, which LAMB's normalization would turn
    into steps that differ between peers.
    """

    layer: AlbertLayer
    weight: Tensor  # (3 * hidden, hidden)
    bias: Tensor  # (3 * hidden,)

    @classmethod
    def of(cls, layer: AlbertLayer) -> _SharedLayer:
        query, key, value = layer.attention.query, layer.attention.key, layer.attention.value
        weight = torch.cat([query.weight, key.weight, value.weight])
        bias = torch.cat([query.bias, key.bias.detach(), value.bias])
        if torch.is_autocast_enabled(weight.device.type):  # autocast caches casts of leaf tensors only
            dtype = torch.get_autocast_dtype(weight.device.type)
            weight, bias = weight.to(dtype), bias.to(dtype)
        return cls(layer, weight, bias)

    def forward(self, hidden: Tensor, length: int, mask: Tensor | None, wanted: Tensor | None = None) -> Tensor:
        """Apply the layer: hidden (b * l, hidden) -> the same shape, or only the rows `wanted`."""
        attention: AlbertAttention = self.layer.attention
        context = self._attend(hidden, length, mask)
        if wanted is not None:
            hidden, context = hidden.index_select(0, wanted), context.index_select(0, wanted)
        attended = attention.output_dropout(_apply(attention.dense, context))
        hidden = attention.LayerNorm(hidden + attended)
        inner = functional.gelu(_apply(self.layer.ffn, hidden), approximate="tanh")
        output: Tensor = self.layer.full_layer_layer_norm(_apply(self.layer.ffn_output, inner) + hidden)
        return output

    def _attend(self, hidden: Tensor, length: int, mask: Tensor | None) -> Tensor:
        """Apply attention within each sample: hidden (b * l, hidden) -> context (b * l, hidden)."""
        attention: AlbertAttention = self.layer.attention
        heads, head_size = attention.num_attention_heads, attention.attention_head_size
        joint = linear(hidden, self.weight, self.bias).view(-1, length, 3, heads, head_size)
        query, key, value = (part.transpose(1, 2) for part in joint.unbind(2))  # (b, heads, l, head size) each
        dropout = attention.attention_dropout.p if attention.training else 0.0
        context = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        return context.transpose(1, 2).reshape(hidden.shape)


def token_logits(model: AlbertForPreTraining, hidden: Tensor) -> Tensor:
    """Return the token logits: hidden (n, hidden) -> (n, vocabulary)."""
    head = model.predictions
    hidden = head.LayerNorm(functional.gelu(_apply(head.dense, hidden), approximate="tanh"))
    return _apply(head.decoder, hidden)


def order_logits(model: AlbertForPreTraining, first_hidden: Tensor) -> Tensor:
    """Return the sentence-order logits from the hidden states of [CLS]: (b, hidden) -> (b, 2)."""
    pooled = torch.tanh(_apply(model.albert.pooler, first_hidden))
    return _apply(model.sop_classifier.classifier, model.sop_classifier.dropout(pooled))


def _apply(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return linear(inputs, layer.weight, layer.bias)


@cache
def onednn_available() -> bool:
    """Return whether this build of PyTorch has oneDNN's float32 matrix product."""
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built_in and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return inputs (n, k) @ weight (m, k).T + bias (m,) -> (n, m), with oneDNN if possible."""
    if torch.compiler.is_compiling():  # Inductor cannot compile oneDNN's operator with changing weights
        return functional.linear(inputs, weight, bias)
    suits = inputs.device.type == "cpu" and inputs.dtype == torch.float32 and inputs.shape[0] > 0
    if not (suits and onednn_available()) or torch.is_autocast_enabled("cpu"):
        return functional.linear(inputs, weight, bias)
    product: Tensor = _OneDnnLinear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        for_inputs, for_weight, for_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if for_inputs else None,
            _product(gradient.t(), inputs.t()) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def use_onednn(model: nn.Module) -> None:
    """Make all linear layers of a model use `linear`, including GPT-2's transposed ones."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = _Linear
        elif type(module) is Conv1D:
            module.__class__ = _TransposedLinear


class _Linear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs.flatten(0, -2), self.weight, self.bias).view(*inputs.shape[:-1], self.out_features)


class _TransposedLinear(Conv1D):
    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs.flatten(0, -2), self.weight.t(), self.bias).view(*inputs.shape[:-1], self.nf)


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left (n, k) @ right (m, k).T + bias (m,) -> (n, m), computed by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product
