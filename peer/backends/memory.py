"""The microbatch that fits into memory, and the errors that mean that there is no more of it.

Its size is what the person says, else what the backend finds. A size that was found is kept in a file, for each device,
model and sequence length, so that a return costs no trials.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from auth.errors import StorageError
from auth.files import write_private
from peer.backends import Backend
from peer.config.run import RunConfig
from peer.data.batching.synthetic import random_batch
from peer.data.tokenization.special_tokens import SpecialIds

logger = logging.getLogger(__name__)
# In the texts of RuntimeErrors, in small letters: of allocators and drivers (PyTorch, CUDA, ROCm, Apple, JAX), and of
# libraries that find no memory for handles and workspaces (cuBLAS, cuDNN, oneDNN). "Not initialized" and "internal
# error" have other causes too; then a smaller microbatch is tried in vain.
PHRASES = (
    "out of memory",
    "out_of_memory",
    "outofmemory",
    "memoryallocation",
    "can't allocate memory",
    "not enough memory",
    "resource_exhausted",
    "status_alloc_failed",
    "statusallocfailed",
    "cublas_status_not_initialized",
    "cudnn_status_internal_error",
    "could not create a primitive",
)
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


class FoundSizes:
    """Sizes that were found on this machine before, in a file; what is damaged in it is found anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> int | None:
        """The size found for this device, model and length."""
        size = self._read().get(key)
        return size if isinstance(size, int) and size >= 0 else None

    def put(self, key: str, size: int) -> None:
        """Remember it; where the disk is full, it is found again next time."""
        try:
            write_private(self._path, json.dumps(self._read() | {key: size}, indent=1).encode())
        except StorageError as error:
            logger.warning("the microbatch that fits is not remembered: %s", error)

    def _read(self) -> dict[str, object]:
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the system gives no more memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in PHRASES)


def largest_fitting(fits: Callable[[int], bool], limit: int) -> int:
    """The largest size up to `limit` found by doubling from 1, then by half a step further; 0 if not even 1 fits."""
    size = 0
    while (following := max(1, 2 * size)) <= limit and fits(following):
        size = following
    between = size + size // 2
    return between if size < between <= limit and fits(between) else size
