"""A tiny run and random batches for it, shared by the tests of model, objective, backend and trainer."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AlbertForPreTraining

from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model

VOCABULARY = 150
LENGTH = 24
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5  # ids below are special


def tiny_config(**model: Any) -> RunConfig:
    """A run whose model takes milliseconds; keyword arguments change the model's shape."""
    shape = {
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    return RunConfig.from_mapping({"model": {**shape, **model}, "data": {"sequence_length": LENGTH}})


def tiny_model(config: RunConfig) -> AlbertForPreTraining:
    """The run's model with larger weights and biases than fresh ones have, so that no part of it hides near zero."""
    model = cast(AlbertForPreTraining, build_model(config, VOCABULARY, SPECIAL))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def random_batch(seed: int, samples: int = 3, *, padded: bool = False, sop: bool = True, masked: bool = True) -> Batch:
    """Random words, a fifth of them masked; padded, the first sample is a third shorter and the mask says so."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, LENGTH)
    input_ids = torch.randint(FIRST_WORD, VOCABULARY, shape, generator=generator)
    attention_mask = torch.ones(shape, dtype=torch.int64) if padded else None
    if attention_mask is not None:
        attention_mask[0, -LENGTH // 3 :] = 0
        input_ids[0, -LENGTH // 3 :] = SPECIAL.pad
    chosen = (torch.rand(shape, generator=generator) < 0.2) & (input_ids != SPECIAL.pad)
    chosen[:, 0] = False
    positions = chosen.flatten().nonzero().flatten() if masked else torch.zeros(0, dtype=torch.int64)
    return Batch(
        input_ids=input_ids,
        token_type_ids=(torch.arange(LENGTH) > LENGTH // 2).long().repeat(samples, 1),
        attention_mask=attention_mask,
        label_positions=positions,
        labels=torch.randint(FIRST_WORD, VOCABULARY, (len(positions),), generator=generator),
        sop_labels=torch.randint(0, 2, (samples,), generator=generator) if sop else None,
    )


def transformers_outputs(model: AlbertForPreTraining, batch: Batch) -> Any:
    """What transformers' own forward says about the batch."""
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.label_positions] = batch.labels
    return model(
        input_ids=batch.input_ids,
        token_type_ids=batch.token_type_ids,
        attention_mask=batch.attention_mask,
        labels=labels.view_as(batch.input_ids),
        sentence_order_label=batch.sop_labels,
    )


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Name -> gradient, zeros where there is none."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }
