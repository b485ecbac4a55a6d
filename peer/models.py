"""The model to train: transformers' own `AlbertForPreTraining`, and a faster way to run it.

The module is transformers', so its checkpoints are too. What differs is `run_heads`, which computes the same function
for a training batch: query, key and value in one product, the fused form of GELU, attention without a mask where
nothing is padded, and from the last layer's attention on only the positions that a loss looks at (the masked ones and
[CLS]).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AlbertConfig, AlbertForPreTraining
from transformers.models.albert.modeling_albert import AlbertAttention, AlbertLayer, AlbertModel

from peer.linear import linear
from peer.run_config import RunConfig

if TYPE_CHECKING:
    from peer.data.batches import Batch

ROWS = 64  # what numbers of rows are rounded up to
IGNORED = -100  # the label that cross entropy leaves out


def albert_config(config: RunConfig, vocab_size: int, pad_id: int) -> AlbertConfig:
    """transformers' configuration of the run's model."""
    model = config.model
    return AlbertConfig(
        vocab_size=vocab_size,
        embedding_size=model.embedding_size,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        num_hidden_groups=model.num_hidden_groups,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=model.max_position_embeddings,
        hidden_act="gelu_new",
        hidden_dropout_prob=model.hidden_dropout_prob,
        attention_probs_dropout_prob=model.attention_probs_dropout_prob,
        classifier_dropout_prob=model.hidden_dropout_prob,
        pad_token_id=pad_id,
        bos_token_id=None,
        eos_token_id=None,
    )


def build_model(config: RunConfig, vocab_size: int, pad_id: int) -> AlbertForPreTraining:
    """The run's model in training mode; every machine gets the same initial weights, drawn from the run's seed.

    Weights that the objective never uses are frozen, so that weight decay does not wear them away.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        model = AlbertForPreTraining(albert_config(config, vocab_size, pad_id))
    if config.objective.name == "mlm":
        for unused in model.sop_classifier, model.albert.pooler:
            cast(nn.Module, unused).requires_grad_(False)
    model.train()
    return model


@dataclass(frozen=True)
class HeadOutputs:
    """What the two heads say about a batch where it has labels."""

    logits: Tensor  # (m + padding, vocabulary)
    labels: Tensor  # (m + padding,) int64, `IGNORED` where padded
    sop_logits: Tensor | None  # (b, 2), None without sentence order


def run_heads(model: AlbertForPreTraining, batch: Batch) -> HeadOutputs:
    """Both heads' logits; equal to transformers' forward at the masked positions and for the samples' order.

    Their number is padded to a multiple of `ROWS`, as each batch has another number of masked positions and oneDNN
    compiles and keeps code for each new shape.
    """
    samples, length = batch.input_ids.shape
    masked = batch.label_positions
    firsts = samples if batch.sop_labels is not None else 0
    padding = -(firsts + len(masked)) % ROWS
    first = torch.arange(firsts, device=masked.device) * length  # [CLS] of each sample
    wanted = functional.pad(torch.cat([first, masked]), (0, padding))
    hidden = _encode(model.albert, batch, wanted)  # (b + m + padding, hidden)
    return HeadOutputs(
        logits=_logits(model, hidden[firsts:]),
        labels=functional.pad(batch.labels, (0, padding), value=IGNORED),
        sop_logits=_sop_logits(model, hidden[:firsts]) if firsts else None,
    )


def _encode(albert: AlbertModel, batch: Batch, wanted: Tensor) -> Tensor:
    """The last layer's output at `wanted`, flat indices into (b * l)."""
    config = albert.config
    embeddings = albert.embeddings
    _, length = batch.input_ids.shape
    hidden = functional.embedding(batch.input_ids, embeddings.word_embeddings.weight, config.pad_token_id)
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
    for layer in order[:-1]:
        hidden = layer.forward(hidden, length, mask)
    return order[-1].forward(hidden, length, mask, wanted)


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


def _logits(model: AlbertForPreTraining, hidden: Tensor) -> Tensor:
    head = model.predictions
    hidden = head.LayerNorm(functional.gelu(_apply(head.dense, hidden), approximate="tanh"))
    return _apply(head.decoder, hidden)


def _sop_logits(model: AlbertForPreTraining, first_hidden: Tensor) -> Tensor:
    pooled = torch.tanh(_apply(model.albert.pooler, first_hidden))
    return _apply(model.sop_classifier.classifier, model.sop_classifier.dropout(pooled))


def _apply(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return linear(inputs, layer.weight, layer.bias)
