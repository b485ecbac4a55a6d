"""How many samples this machine computes at once: what the person says, else what its backend finds to fit.

What was found is kept in a file, for each device, model and sequence length, so that a return costs no trials.
"""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256

import numpy as np

from peer.backends import Backend
from peer.backends.memory import FoundSizes
from peer.data.special_tokens import SpecialIds
from peer.data.synthetic import random_batch
from peer.run_config import RunConfig

MICROBATCHES_A_STEP = 16  # at least, from one peer alone: a step ends with a whole microbatch, and waits for it


def fitting_microbatch_size(
    backend: Backend, config: RunConfig, vocab_size: int, special: SpecialIds, found: FoundSizes
) -> int:
    """Samples for each microbatch of this configuration; raises `MemoryLimitError` if not even one fits."""
    usual = config.data.microbatch_size
    limit = most_samples(config)
    key = describe_work(backend.description, config, vocab_size, limit)
    size = found.get(key)
    if size is None:
        rng = np.random.default_rng(config.run.seed)
        make_batch = partial(random_batch, config, vocab_size, special, rng=rng)
        size = backend.microbatch_size(usual, limit, make_batch)
        found.put(key, size)
    return size


def most_samples(config: RunConfig) -> int:
    """The largest microbatch that is of use in this configuration."""
    averaging = config.averaging
    steps = max(MICROBATCHES_A_STEP, averaging.local_steps)
    return max(config.data.microbatch_size, averaging.target_batch_size // steps)


def describe_work(device: str, config: RunConfig, vocab_size: int, limit: int) -> str:
    """Names a device with a model, a length and a number of samples, for what is remembered of them."""
    facts = [config.model.model_dump(mode="json"), config.objective.model_dump(mode="json")]
    sizes = [vocab_size, config.data.sequence_length, config.data.microbatch_size, limit]
    return f"{device}: {sha256(json.dumps([facts, sizes]).encode()).hexdigest()}"
