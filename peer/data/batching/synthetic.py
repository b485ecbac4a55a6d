"""Samples of random tokens in the shape of a run's: to measure what a machine can compute before there is any data."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import torch

from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, draw_numbers
from peer.data.batching.masking import Masker, next_tokens
from peer.data.tokenization.special_tokens import SpecialIds


def random_batch(
    config: RunConfig, vocab_size: int, special: SpecialIds, samples: int, rng: np.random.Generator
) -> Batch:
    """A microbatch as the run's objective and family want it, without padding, as in training."""
    length = config.data.sequence_length
    words = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), [id_ for id_ in astuple(special) if id_ is not None])
    ids = words[rng.integers(len(words), size=(samples, length))]
    ids[:, 0], ids[:, -1] = special.cls, special.sep
    if not config.objective.masks:
        labelled = next_tokens(ids)
    else:
        labelled = Masker(vocab_size, special, config.objective.mask_probability).mask(ids, 2, rng)
    several_types = ARCHITECTURES[config.model.architecture].token_types > 1
    ordered = config.objective.name == "mlm+sop"
    return Batch(
        input_ids=torch.from_numpy(labelled.input_ids),
        token_type_ids=(torch.arange(length) >= length // 2).long().repeat(samples, 1) if several_types else None,
        attention_mask=None,
        label_positions=torch.from_numpy(labelled.positions),
        labels=torch.from_numpy(labelled.labels),
        sop_labels=torch.from_numpy(rng.integers(0, 2, samples)) if ordered else None,
        draws=draw_numbers(len(labelled.labels), rng) if config.objective.name == "rtd" else None,
    )
