"""A tiny model and random batches of every family, shared by the tests of models, objectives and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.tokenizers import load_special_ids
from peer.models.build import build_model, checkpoint_config
from tests.support.tiny_bert import save_tiny_bert

VOCABULARY = 150
LENGTH = 32
SPECIAL = SpecialIds(pad=1, unk=3, cls=0, sep=2, mask=4)  # RoBERTa's order, in which padding is not 0
FIRST_WORD = 5  # ids below are special
# What the tests also want to see of a family, beside its defaults.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta without p2c": ("deberta", {"pos_att_type": ["c2p"]}),
    "deberta-v2 without p2c": ("deberta-v2", {"pos_att_type": ["c2p"], "share_att_key": False}),
    "deberta-v2 as the xlarge one": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu", "share_att_key": False}),
    "deberta-v2 as a BERT": ("deberta-v2", {"relative_attention": False, "position_biased_input": True}),
    "modernbert with narrow windows": ("modernbert", {"local_attention": 4, "global_attn_every_n_layers": 2}),
    "reformer with plain positions": ("reformer", {"axial_pos_embds": False}),
    "reformer with four hashes": ("reformer", {"num_hashes": 4, "attn_layers": ["lsh", "lsh"]}),
    "gpt2 with scaled layers": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
}
NAMES = (*ARCHITECTURES, *VARIANTS)


def family_config(name: str, **model: Any) -> RunConfig:
    """A run that trains a model of this family or variant, in milliseconds."""
    architecture, options = VARIANTS.get(name, (name, {}))
    if architecture == "reformer":
        options = {"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 16, **options}
    shape = {
        "architecture": architecture,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": LENGTH,
        "options": options,
        **({"embedding_size": 16} if "embedding_size" in ARCHITECTURES[architecture].own_sizes else {}),
        **model,
    }
    objective = {"name": ARCHITECTURES[architecture].objectives[0]}
    return RunConfig.from_mapping({"model": shape, "objective": objective, "data": {"sequence_length": LENGTH}})


def save_family(name: str, folder: Path) -> Path:
    """Save a fresh model, with the tiny BERT's tokenizer, in a folder that plain transformers loads."""
    save_tiny_bert(folder)
    model = build_model(family_config(name), VOCABULARY, load_special_ids(folder))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(checkpoint_config(model)))
    return folder


def family_model(config: RunConfig) -> PreTrainedModel:
    """The run's model with larger weights and biases than fresh ones have, so that no part of it hides near zero."""
    model = build_model(config, VOCABULARY, SPECIAL)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def family_batch(config: RunConfig, seed: int = 0, samples: int = 3) -> Batch:
    """Random words of the run's length with the labels of its objective."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, LENGTH)
    input_ids = torch.randint(FIRST_WORD, VOCABULARY, shape, generator=generator)
    if config.objective.name == "clm":
        places = torch.arange(samples * LENGTH).view(shape)[:, :-1].flatten()
        labels = input_ids[:, 1:].flatten()
    else:
        places = (torch.rand(shape, generator=generator) < 0.2).flatten().nonzero().flatten()
        labels = torch.randint(FIRST_WORD, VOCABULARY, (len(places),), generator=generator)
    several = ARCHITECTURES[config.model.architecture].token_types > 1
    return Batch(
        input_ids=input_ids,
        token_type_ids=(torch.arange(LENGTH) > LENGTH // 2).long().repeat(samples, 1) if several else None,
        attention_mask=None,
        label_positions=places,
        labels=labels,
        sop_labels=torch.arange(samples) % 2 if config.objective.name == "mlm+sop" else None,
    )
