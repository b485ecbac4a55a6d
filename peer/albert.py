"""A faster way to run transformers' own `AlbertForPreTraining`.

The module is transformers', so its checkpoints are too. What differs is the forward, which computes the same function
for a training batch: query, key and value in one product, the fused form of GELU, attention without a mask where
nothing is padded, and from the last layer's attention on only the positions that a loss looks at (those with labels and
[CLS]). `peer/model_families.py` lists it beside the families that run as transformers wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AlbertForPreTraining
from transformers.models.albert.modeling_albert import AlbertAttention, AlbertLayer

from peer.linear import linear

if TYPE_CHECKING:
    from peer.data.batches import Batch


def encode(model: AlbertForPreTraining, batch: Batch, wanted: Tensor) -> Tensor:
    """The last layer's output (n, hidden) at `wanted`, (n,) flat indices into (b * l)."""
    albert = model.albert
    config = albert.config
    embeddings = albert.embeddings
    _, length = batch.input_ids.shape
    hidden = functional.embedding(batch.input_ids, embeddings.word_embeddings.weight, config.pad_token_id)
    assert batch.token_type_ids is not None  # ALBERT tells two kinds of segments apart
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
    """Let `encode` use a forward of its layers that this compiler of torch.compile makes; None: no longer."""
    compiled = None if compiler is None else torch.compile(_SharedLayer.forward, backend=compiler)
    model.albert.encoder.compiled_forward = compiled  # type: ignore[assignment]


@dataclass(frozen=True)
class _SharedLayer:
    """A layer with its query, key and value weights side by side; made once a batch, as ALBERT's layers share them.

    The key's bias is detached: it adds the same to all scores of a row, which softmax ignores, so its gradient is zero.
    Computed, it would be rounding noise, and LAMB's normalization would make steps of it that differ from peer to peer.
    """

    layer: AlbertLayer
    weight: Tensor  # (3 * hidden, hidden)
    bias: Tensor  # (3 * hidden,)

    @classmethod
    def of(cls, layer: AlbertLayer) -> _SharedLayer:
        query, key, value = layer.attention.query, layer.attention.key, layer.attention.value
        weight = torch.cat([query.weight, key.weight, value.weight])
        return cls(layer, weight, torch.cat([query.bias, key.bias.detach(), value.bias]))

    def forward(self, hidden: Tensor, length: int, mask: Tensor | None, wanted: Tensor | None = None) -> Tensor:
        """hidden (b * l, hidden) -> the same, or only the rows `wanted`."""
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
        """hidden (b * l, hidden) -> what each position gathers from its sample, (b * l, hidden)."""
        attention: AlbertAttention = self.layer.attention
        heads, head_size = attention.num_attention_heads, attention.attention_head_size
        joint = linear(hidden, self.weight, self.bias).view(-1, length, 3, heads, head_size)
        query, key, value = (part.transpose(1, 2) for part in joint.unbind(2))  # (b, heads, l, head size) each
        dropout = attention.attention_dropout.p if attention.training else 0.0
        context = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        return context.transpose(1, 2).reshape(hidden.shape)


def token_logits(model: AlbertForPreTraining, hidden: Tensor) -> Tensor:
    """hidden (n, hidden) -> (n, vocabulary)"""
    head = model.predictions
    hidden = head.LayerNorm(functional.gelu(_apply(head.dense, hidden), approximate="tanh"))
    return _apply(head.decoder, hidden)


def order_logits(model: AlbertForPreTraining, first_hidden: Tensor) -> Tensor:
    """The hidden states of the samples' [CLS] (b, hidden) -> in order or swapped, (b, 2)"""
    pooled = torch.tanh(_apply(model.albert.pooler, first_hidden))
    return _apply(model.sop_classifier.classifier, model.sop_classifier.dropout(pooled))


def _apply(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return linear(inputs, layer.weight, layer.bias)
