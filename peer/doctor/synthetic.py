"""Samples of random tokens, in the shape of a run's: nobody has its tokenizer before joining."""

from __future__ import annotations

import numpy as np
import torch

from peer.config.architectures import ARCHITECTURES
from peer.data.batches import Batch
from peer.data.labels import next_tokens
from peer.data.masking import Masker
from peer.data.special_tokens import SpecialIds
from peer.run_config import RunConfig

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_WORD = 5  # ids below are special


def random_batch(config: RunConfig, samples: int, rng: np.random.Generator) -> Batch:
    """A microbatch as the run's objective and family want it."""
    length, vocabulary = config.data.sequence_length, config.tokenizer.vocab_size
    ids = rng.integers(FIRST_WORD, vocabulary, (samples, length), dtype=np.int32)  # (samples, length)
    ids[:, 0], ids[:, -1] = SPECIAL.cls, SPECIAL.sep
    if config.objective.name == "clm":
        labelled = next_tokens(ids)
    else:
        labelled = Masker(vocabulary, SPECIAL, config.objective.mask_probability).mask(ids, 2, rng)
    several_types = ARCHITECTURES[config.model.architecture].token_types > 1
    ordered = config.objective.name == "mlm+sop"
    return Batch(
        input_ids=torch.from_numpy(labelled.input_ids),
        token_type_ids=(torch.arange(length) >= length // 2).long().repeat(samples, 1) if several_types else None,
        attention_mask=None,
        label_positions=torch.from_numpy(labelled.positions),
        labels=torch.from_numpy(labelled.labels),
        sop_labels=torch.from_numpy(rng.integers(0, 2, samples)) if ordered else None,
    )
