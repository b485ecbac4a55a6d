"""The largest microbatch that fits into memory, and detection of out-of-memory errors.

The user may set the size; otherwise the backend finds it by trials. Results are stored in a file
by device, model and sequence length, so the next start needs no trials.
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
# Lower-case parts of error messages from allocators and drivers (PyTorch, CUDA, ROCm, Apple, JAX),
# and from libraries without memory for handles and workspaces (cuBLAS, cuDNN, oneDNN). "Not
# initialized" and "internal error" have other causes too, which a smaller microbatch does not fix.
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
MICROBATCHES_A_STEP = 16  # minimum number of microbatches per step, because a step waits for whole microbatches


def fitting_microbatch_size(
    backend: Backend, config: RunConfig, vocab_size: int, special: SpecialIds, found: FoundSizes
) -> int:
    """Return the microbatch size. Raises `MemoryLimitError` if not even one sample fits."""
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
    """Return the largest useful microbatch size for a configuration."""
    averaging = config.averaging
    steps = max(MICROBATCHES_A_STEP, averaging.local_steps)
    return max(config.data.microbatch_size, averaging.target_batch_size // steps)


def describe_work(device: str, config: RunConfig, vocab_size: int, limit: int) -> str:
    """Return a key for the results of a device, model, sequence length and number of samples."""
    facts = [config.model.model_dump(mode="json"), config.objective.model_dump(mode="json")]
    sizes = [vocab_size, config.data.sequence_length, config.data.microbatch_size, limit]
    return f"{device}: {sha256(json.dumps([facts, sizes]).encode()).hexdigest()}"


class FoundSizes:
    """A file of microbatch sizes found on this machine; damaged entries are ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> int | None:
        """Return the size stored under a key of `describe_work`, or None if there is none."""
        size = self._read().get(key)
        return size if isinstance(size, int) and size >= 0 else None

    def put(self, key: str, size: int) -> None:
        """Store a size; a failed write is logged, and the size is determined again later."""
        try:
            write_private(self._path, json.dumps(self._read() | {key: size}, indent=1).encode())
        except StorageError as error:
            logger.warning("cannot store the microbatch size: %s", error)

    def _read(self) -> dict[str, object]:
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the system is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in PHRASES)


def largest_fitting(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest size 2^n or 3 * 2^n up to `limit` that fits, or 0 if 1 does not fit."""
    size = 0
    while (following := max(1, 2 * size)) <= limit and fits(following):
        size = following
    between = size + size // 2
    return between if size < between <= limit and fits(between) else size
