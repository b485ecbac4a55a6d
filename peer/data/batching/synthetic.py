"""Random batches with a run's shapes, for measuring a machine before data is available."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from peer.config.run import RunConfig
from peer.data.batching.batches import Batch, labelled_batch
from peer.data.batching.masking import Masker, next_tokens
from peer.data.batching.samples import Samples
from peer.data.tokenization.special_tokens import SpecialIds


def random_batch(
    config: RunConfig, vocab_size: int, special: SpecialIds, samples: int, rng: np.random.Generator
) -> Batch:
    """Generate a random microbatch for the run's objective and model family, without padding."""
    length = config.data.sequence_length
    words = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), [id_ for id_ in astuple(special) if id_ is not None])
    ids = words[rng.integers(len(words), size=(samples, length))]
    ids[:, 0], ids[:, -1] = special.cls, special.sep
    if not config.objective.masks:
        labelled = next_tokens(ids)
    else:
        labelled = Masker(vocab_size, special, config.objective.mask_probability).mask(ids, 2, rng)
    types = np.broadcast_to(np.arange(length) >= length // 2, ids.shape).astype(np.int8)
    order = rng.integers(0, 2, samples) if config.objective.name == "mlm+sop" else None
    return labelled_batch(config, Samples(ids, types, order), labelled, rng)
